"""The report's charts, as SVG whose diff can be read: text stays text, nothing in it is random.

``lines`` draws one line a series, with a mark at each point; ``bars`` draws one bar a side in each
group. Either axis may be logarithmic.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Points = Sequence[tuple[float, float]]
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#999933",
)  # fmt: skip
"""Which stay apart for those who see few of them."""
FEW_DECADES = 30
"""Times the least value, below which powers of ten alone would leave a logarithmic axis empty."""


@functools.cache
def _pyplot() -> Any:
    """Loaded when the first chart is drawn: rows can be listed without it."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "logbus",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": mpl.cycler(color=COLOURS),
            "font.size": 10,
        }
    )
    from matplotlib import pyplot

    return pyplot


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def lines(
    path: Path | str,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Points],
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Write a chart of lines; the value axis begins at nothing unless it is logarithmic."""
    figure, axes = _axes(title, y_label)
    for name, points in series.items():
        xs, ys = zip(*sorted(points), strict=True) if points else ((), ())
        axes.plot(xs, ys, marker="o", markersize=3.5, label=name)
    axes.set_xlabel(x_label)
    if log_x:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_number)
    _finish(figure, axes, path, len(series), log_y)


def bars(
    path: Path | str,
    title: str,
    y_label: str,
    groups: Mapping[str, Mapping[str, float]],
    *,
    log_y: bool = False,
) -> None:
    """Write a chart of bars: ``groups`` names what is compared, each with a value a side."""
    sides = list(dict.fromkeys(side for values in groups.values() for side in values))
    figure, axes = _axes(title, y_label)
    width = 0.8 / max(1, len(sides))
    for number, side in enumerate(sides):
        places = [at + (number - (len(sides) - 1) / 2) * width for at in range(len(groups))]
        drawn = axes.bar(
            places, [v.get(side, 0.0) for v in groups.values()], width * 0.92, label=side
        )
        axes.bar_label(drawn, fmt=lambda value: _number(value) if value else "", fontsize=8)
    axes.set_xticks(range(len(groups)), list(groups))
    _finish(figure, axes, path, len(sides), log_y)


def against_goals(path: Path | str, title: str, rows: Mapping[str, tuple[float, float]]) -> None:
    """A bar for each row, a mark at its goal; what misses its goal has another colour."""
    height = 1.2 + 0.26 * len(rows)
    figure, axes = _pyplot().subplots(figsize=(8, height))
    places = range(len(rows), 0, -1)
    for place, (value, goal) in zip(places, rows.values(), strict=True):
        axes.barh(place, value, 0.7, color=COLOURS[0] if value >= goal else COLOURS[1])
        axes.plot([goal, goal], [place - 0.45, place + 0.45], color="black", linewidth=1.5)
        axes.annotate(f" {value:.2f}", (value, place), va="center", fontsize=8)
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_number)
    axes.set_yticks(places, list(rows), fontsize=8)
    axes.set_ylim(0.2, len(rows) + 0.8)
    axes.set_title(title, fontsize=10)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    _pyplot().close(figure)


def _axes(title: str, y_label: str) -> tuple[Any, Any]:
    figure, axes = _pyplot().subplots(figsize=(8, 4.6))
    axes.set_title(title)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)
    return figure, axes


def _finish(figure: Any, axes: Any, path: Path | str, names: int, log_y: bool) -> None:
    if log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high / low < FEW_DECADES:
            axes.yaxis.set_major_locator(_ticker().LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(_ticker().NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_number)
    if names > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper center", ncols=3,
                    bbox_to_anchor=(0.5, -0.14))  # fmt: skip
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    _pyplot().close(figure)


def _number(value: float, _: int = 0) -> str:
    """Short: 2.5 M, 640 k, 12, 0.04."""
    for size, least, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e3, 1e4, " k")):
        if abs(value) >= least:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
