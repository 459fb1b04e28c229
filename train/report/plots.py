"""The plots of a report, as inline SVG in the text color of the page."""

import html
import io
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from train.report.run_data import Rewards, Round, RunData

INK = "#010203"  # placeholder for the page's text color
COLORS = ("#3f7fc1", "#d07a26", "#3c9a63", "#8f6cc0", "#c0517a", "#7a828c", "#9a8a2e")
STYLE = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "text.color": INK, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.titlesize": 10,
    "axes.spines.right": False, "legend.frameon": False, "axes.titlelocation": "left", "axes.linewidth": 0.6,
    "text.parse_math": False,
}  # fmt: skip
METADATA = ("Creator", "Date", "Format", "Type")  # left out of the SVG
# Title of a panel -> name of a curve -> key of TRL's log.
SFT_PANELS = {"loss (should fall and level off)": {"loss": "loss"}}
DPO_PANELS = {
    "loss (should fall)": {"loss": "loss"},
    "margin and accuracy (should rise)": {"margin": "rewards/margins", "accuracy": "rewards/accuracies"},
    "log-probability (rejected falls more)": {"chosen": "logps/chosen", "rejected": "logps/rejected"},
}


# ------------------------------------------------------------------ plots of each section


@rc_context(STYLE)
def plots_of_systems(data: RunData) -> list[Markup]:
    """Plot all systems with intervals, and the verdict's measure by kind of turn and by turn number."""
    metrics, plots = data.metrics, []
    plotted_measures = [m for m in dict.fromkeys((data.measure, "EM", metrics["reward"])) if m in data.measures][:3]
    if plotted_measures:
        plots.append(plot_systems(metrics, plotted_measures))
    compared = [s for s in ("original", "base", data.final, "reference") if s in data.systems]
    for parts, label in ((metrics["by_kind"], "kind of turn"), (metrics["by_depth"], "turn number")):
        if len(parts) > 1 and any(part[s].get(data.measure) for part in parts.values() for s in compared):
            plots.append(plot_parts(parts, compared, data.measure, label))
    return plots


@rc_context(STYLE)
def plots_of_rewards(rewards: Rewards) -> list[Markup]:
    """Plot histograms of scores and gaps and, if the turns have labels, rewards by rank."""
    plots = [plot_rewards(rewards)] if rewards.scores else []
    return plots + ([plot_ranks(rewards)] if len(rewards.by_rank) > 1 else [])


@rc_context(STYLE)
def plots_of_training(round_data: Round, stage: str) -> list[Markup]:
    """Plot the curves of a training stage and, for DPO, the lengths of the rewrites."""
    entries = [entry for entry in round_data.logs[stage] if "loss" in entry]
    panels = SFT_PANELS if stage == "sft" else DPO_PANELS
    label = f"training curves of round-{round_data.number}/{stage}"
    plots = [plot_curves(entries, panels, label)] if len(entries) > 1 else []
    return plots + ([plot_lengths(round_data.lengths)] if stage == "dpo" and any(round_data.lengths.values()) else [])


# ------------------------------------------------------------------ single plots


def svg_of(figure: Figure, label: str) -> Markup:
    """Convert a figure to SVG for the page, with text kept as text and `label` as the text alternative."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(METADATA))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # ids of groups repeat from plot to plot
    svg = re.sub(r'(width|height)="[\d.]+pt"', "", svg, count=2)
    width = figure.get_figwidth()  # scale so that all plots have one text size; narrow screens scroll
    size = f"width: {5.1 * width:.1f}rem; min-width: {3.4 * width:.1f}rem"
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}" style="{size}"', 1))


def new_figure(columns: int = 1, height: float = 2.6) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(3.6 * columns if columns > 1 else 6.4, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def plot_systems(metrics: Mapping[str, Any], measures: Sequence[str]) -> Markup:
    """Plot the systems' means with 95% intervals, one panel per measure."""
    names = list(metrics["systems"])
    figure, panels = new_figure(len(measures), 0.9 + 0.28 * len(names))
    for panel, measure in zip(panels, measures, strict=True):
        for row, name in enumerate(names):
            interval = metrics["intervals"][name].get(measure)
            if interval is None:
                continue
            color = COLORS[0] if name in ("sft", "dpo") or name.startswith("dpo-") else COLORS[5]
            panel.plot(interval, [row, row], color=color, linewidth=2)
            panel.plot([metrics["systems"][name][measure]], [row], "o", color=color)
        panel.set_yticks(range(len(names)), names if panel is panels[0] else [""] * len(names))
        panel.invert_yaxis()
        panel.set_title(measure)
    return svg_of(figure, f"{', '.join(measures)} of the systems with 95% intervals; the values are in the table")


def plot_parts(parts: Mapping[str, Mapping[str, Any]], systems: Sequence[str], measure: str, label: str) -> Markup:
    """Plot the systems' means for each group of turns, labeled with its name and number of turns."""
    figure, (panel,) = new_figure()
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        values = [part[system].get(measure) or 0.0 for part in parts.values()]
        places = np.arange(len(parts)) + (i - (len(systems) - 1) / 2) * width
        panel.bar(places, values, width * 0.9, label=system, color=COLORS[i % len(COLORS)])
    panel.set_xticks(range(len(parts)), [f"{name}\n{part['turns']} turns" for name, part in parts.items()])
    panel.set_title(f"{measure} by {label}")
    figure.legend(loc="outside lower center", ncols=4)
    return svg_of(figure, f"{measure} by {label} for {', '.join(systems)}")


def plot_rewards(rewards: Rewards) -> Markup:
    """Plot histograms of scores and gaps, and mark the smallest gap of the kept pairs."""
    figure, (scores, gaps) = new_figure(2)
    scores.hist(rewards.scores, bins=40, color=COLORS[0])
    scores.set(title="scores of the candidates", ylabel="candidates")
    gaps.hist(rewards.gaps, bins=40, color=COLORS[0])
    gaps.set(title="gap between best and worst", ylabel="turns")
    if rewards.smallest_kept is not None:
        gaps.axvline(rewards.smallest_kept, color=COLORS[1], linestyle="--")
        gaps.text(rewards.smallest_kept, gaps.get_ylim()[1], " kept →", va="top", color=COLORS[1])
    return svg_of(figure, "histograms of the scores of all candidates and of the gaps between best and worst")


def plot_ranks(rewards: Rewards) -> Markup:
    """Plot the rewards of candidates by the rank of the first relevant document that they retrieve."""
    ranks = sorted(rank for rank in rewards.by_rank if rank) + [rank for rank in rewards.by_rank if not rank]
    figure, (panel,) = new_figure()
    boxes = panel.boxplot(
        [rewards.by_rank[rank] for rank in ranks], showfliers=False, patch_artist=True,
        medianprops={"color": INK}, whiskerprops={"color": INK}, capprops={"color": INK},
    )  # fmt: skip
    for box in boxes["boxes"]:
        box.set(facecolor=COLORS[0], edgecolor=INK, alpha=0.7)
    labels = [f"{rank or 'none'}\n{len(rewards.by_rank[rank])}" for rank in ranks]
    panel.set_xticks(range(1, len(ranks) + 1), labels)
    panel.set(title="reward by rank of the first relevant document", xlabel="rank, and number of candidates")
    means = ", ".join(f"{rank or 'none'}: {fmean(rewards.by_rank[rank]):.3f}" for rank in ranks)
    return svg_of(figure, f"reward by rank of the first relevant document; means {means}")


def plot_curves(entries: Sequence[Mapping[str, Any]], panels: Mapping[str, Mapping[str, str]], label: str) -> Markup:
    """Plot the curves of a training log, one panel per title."""
    figure, axes = new_figure(len(panels), 2.2)
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for color, (name, key) in zip(COLORS, curves.items(), strict=False):
            points = [(entry["step"], entry[key]) for entry in entries if key in entry]
            axis.plot(*zip(*points, strict=True), color=color, label=name)
        axis.set(title=title, xlabel="step")
        axis.locator_params(axis="x", integer=True)
        if len(curves) > 1:
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=2)
    return svg_of(figure, label)


def plot_lengths(lengths: Mapping[str, Sequence[int]]) -> Markup:
    """Plot the number of words in the chosen and the rejected rewrites."""
    figure, (panel,) = new_figure(height=2.2)
    longest = max(map(max, lengths.values()))
    width = max(1, longest // 30)
    bins = np.arange(0, longest + width + 1, width)
    panel.hist(list(lengths.values()), bins=bins, label=list(lengths), color=COLORS[:2])
    panel.set(title="words in the rewrites of the pairs", ylabel="pairs")
    panel.legend()
    return svg_of(figure, "words in the chosen and in the rejected rewrites")
