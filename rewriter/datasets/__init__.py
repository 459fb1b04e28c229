"""Readers of published data sets: `READERS` has the function for each `data.format`.

A new data set needs a reader in a new file, an entry in `READERS`, and its name in
`core.data_settings.DataSettings.format` and `core.data_sources.PUBLISHED`.
"""

from rewriter.datasets import mtrag, qrecc, topiocqa

READERS = {"topiocqa": topiocqa.read, "qrecc": qrecc.read, "mtrag": mtrag.read}
