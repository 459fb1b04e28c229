"""Published data sets, read from their own files: `READERS` has the function for each `data.format`."""

from rewriter.datasets import mtrag, qrecc, topiocqa

READERS = {"topiocqa": topiocqa.read, "qrecc": qrecc.read, "mtrag": mtrag.read}
