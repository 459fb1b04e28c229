"""How useful a retrieved document list is to the generator, and the preference pairs that follow."""
