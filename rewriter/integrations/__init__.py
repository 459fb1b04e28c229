"""The rewriter as a component of Haystack and as a runnable of LangChain. Each module needs its own library."""
