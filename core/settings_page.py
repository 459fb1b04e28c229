"""Generate docs/settings.md from the dataclasses of the settings.

python -m core.settings_page > docs/settings.md
"""

import argparse
from itertools import groupby
from operator import attrgetter

from core.schema import describe, settings_of, title_of
from core.settings import Settings

HEAD = """# Settings

One YAML is one run. A file has sections, and a section has settings:

```yaml
run:
  dir: runs/first
data:
  train: turns.jsonl
  corpus: corpus.jsonl
```

A flag overrides the file: `--config FILE --run.seed 2`. On the command line, `null` resets a value
(`--data.test null`), and lists and mappings are written as in YAML (`--evaluation.systems '[original, base]'`). A
flag can also set one entry of a mapping: `--dpo.beta 0.2`, `--data.sets.wiki.corpus FILE`. `--print_config` prints all
settings.

`python -m core.settings_page` generates this page.
"""


def settings_page() -> str:
    """The page in Markdown."""
    parts = [HEAD]
    for section, settings in groupby(settings_of(Settings), key=attrgetter("section")):
        rows = ["| setting | value | default | meaning |", "|---|---|---|---|"]
        for setting in settings:
            default = f"`{setting.default}`" if setting.default else ""
            rows.append(f"| `{setting.name}` | {describe(setting.type)} | {default} | {setting.help} |")
        parts.append(f"## {title_of(section)}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m core.settings_page", description=__doc__).parse_args()
    print(settings_page(), end="")
