"""Published data sets, read from the published files: `READERS` has the function for each `data.format`.

A new data set is a reader in a new file, an entry of `READERS`, its name in `core.data_settings.DataSettings.format`,
and in `core.data_sources.PUBLISHED`.
"""

from rewriter.datasets import mtrag, qrecc, topiocqa

READERS = {"topiocqa": topiocqa.read, "qrecc": qrecc.read, "mtrag": mtrag.read}
