"""An orchestration as an SVG picture with layers from top to bottom, drawn without further packages.

The layer of a step is the longest path from the start, without back edges. The order within a layer is improved until
few edges cross. Edges over several layers get a waypoint in each layer, so that they run between the boxes. The layout
is implemented here because the only pure-Python library for it, grandalf, computes coordinates without drawing them and
has the license GPL or EPL.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape

from runlane.definitions.mermaid import END, Drawing, Edge, EdgeStyle, picture_of, shorten
from runlane.definitions.schema.definition import Orchestration

_BOX_WIDTH: Final = 168
_BOX_HEIGHT: Final = 44
_GAP_X: Final = 28
_GAP_Y: Final = 56
_LANE_WIDTH: Final = 14
_MARGIN: Final = 24
_ROUNDS: Final = 8
_LETTERS: Final = 22
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#475569"/></marker></defs>'
)
_COLOURS: Final = {
    "human": "#fde68a",
    "evaluator": "#ddd6fe",
    "if_else": "#ddd6fe",
    "switch": "#ddd6fe",
    "parallel": "#bfdbfe",
    "merge": "#bfdbfe",
    "loop": "#bfdbfe",
    "wait": "#fde68a",
    "end": "#e5e7eb",
}


@dataclass(slots=True)
class _Layout:
    """Nodes in layers. A tuple is a waypoint of an edge that continues to another layer."""

    layers: list[list[object]] = field(default_factory=list[list[object]])
    up: dict[object, list[object]] = field(default_factory=lambda: defaultdict[object, list[object]](list))
    down: dict[object, list[object]] = field(default_factory=lambda: defaultdict[object, list[object]](list))
    x: dict[object, float] = field(default_factory=dict[object, float])
    y: dict[object, float] = field(default_factory=dict[object, float])


def svg(orchestration: Orchestration) -> str:
    """Return the drawing as an SVG document."""
    picture = picture_of(orchestration)
    back = _back_edges(picture)
    layout = _layered(picture, back)
    _improve(layout)
    width, height = _assign_positions(layout)
    rank = {node: number for number, layer in enumerate(layout.layers) for node in layer}
    loops = [edge for edge in picture.edges if edge in back]
    width += _LANE_WIDTH * (len(loops) + 1) if loops else 0
    size = f'width="{width:g}" height="{height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}" {_FONT}>',
        f"<title>{escape(shorten(orchestration.title))}</title>",
        _TIP,
        f'<rect {size} fill="#ffffff"/>',
    ]
    right = max(layout.x.values(), default=0) + _BOX_WIDTH / 2 + _GAP_X / 2
    for edge in picture.edges:
        if edge in back:
            parts.append(_draw_back(edge, layout, right + _LANE_WIDTH * (loops.index(edge) + 1)))
        else:
            parts.append(_draw(edge, layout, rank))
    parts += (_box(step_id, picture, layout) for step_id in rank if isinstance(step_id, str))
    return "\n".join([*parts, "</svg>", ""])


def _back_edges(picture: Drawing) -> set[Edge]:
    """Return the edges that close a cycle, found by a depth-first search from the start."""
    following: dict[str, list[Edge]] = defaultdict(list)
    for edge in picture.edges:
        following[edge.source].append(edge)
    back: set[Edge] = set()
    state: dict[str, int] = {}
    for start in picture.steps:
        if start in state:
            continue
        state[start] = 1
        stack = [(start, iter(following[start]))]
        while stack:
            node, edges = stack[-1]
            edge = next(edges, None)
            if edge is None:
                state[node] = 2
                stack.pop()
            elif state.get(edge.target) == 1:
                back.add(edge)
            elif edge.target not in state:
                state[edge.target] = 1
                stack.append((edge.target, iter(following[edge.target])))
    return back


def _layered(picture: Drawing, back: set[Edge]) -> _Layout:
    edges = [edge for edge in picture.edges if edge not in back]
    nodes = [*picture.steps, *([END] if any(edge.target == END for edge in edges) else [])]
    rank = dict.fromkeys(nodes, 0)
    incoming = dict.fromkeys(nodes, 0)
    for edge in edges:
        incoming[edge.target] += 1
    following: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        following[edge.source].append(edge)
    ready = [node for node in nodes if incoming[node] == 0]
    for node in ready:
        for edge in following[node]:
            rank[edge.target] = max(rank[edge.target], rank[node] + 1)
            incoming[edge.target] -= 1
            if incoming[edge.target] == 0:
                ready.append(edge.target)
    layout = _Layout([[] for _ in range(max(rank.values(), default=0) + 1)])
    for node in nodes:
        layout.layers[rank[node]].append(node)
    for number, edge in enumerate(edges):
        last: object = edge.source
        for level in range(rank[edge.source] + 1, rank[edge.target]):
            waypoint = (number, level)
            layout.layers[level].append(waypoint)
            layout.down[last].append(waypoint)
            layout.up[waypoint].append(last)
            last = waypoint
        layout.down[last].append(edge.target)
        layout.up[edge.target].append(last)
    return layout


def _improve(layout: _Layout) -> None:
    """Move each node towards the middle of its neighbours, layer by layer, alternately downwards and upwards."""
    for turn in range(_ROUNDS):
        downwards = turn % 2 == 0
        neighbours = layout.up if downwards else layout.down
        order = range(1, len(layout.layers)) if downwards else range(len(layout.layers) - 2, -1, -1)
        for level in order:
            beside = layout.layers[level - 1 if downwards else level + 1]
            position = {node: number for number, node in enumerate(beside)}
            keys: dict[object, float] = {}
            for number, node in enumerate(layout.layers[level]):
                near = [position[other] for other in neighbours[node] if other in position]
                keys[node] = sum(near) / len(near) if near else float(number)
            layout.layers[level].sort(key=keys.__getitem__)


def _assign_positions(layout: _Layout) -> tuple[float, float]:
    widths = [sum(_width(node) + _GAP_X for node in layer) - _GAP_X for layer in layout.layers]
    widest = max(widths, default=0)
    for level, layer in enumerate(layout.layers):
        x = _MARGIN + (widest - widths[level]) / 2
        for node in layer:
            layout.x[node] = x + _width(node) / 2
            layout.y[node] = _MARGIN + level * (_BOX_HEIGHT + _GAP_Y) + _BOX_HEIGHT / 2
            x += _width(node) + _GAP_X
    height = 2 * _MARGIN + len(layout.layers) * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y
    return widest + 2 * _MARGIN, height


def _width(node: object) -> float:
    return _BOX_WIDTH if isinstance(node, str) else _LANE_WIDTH


def _draw(edge: Edge, layout: _Layout, rank: dict[object, int]) -> str:
    points = [(layout.x[edge.source], layout.y[edge.source] + _BOX_HEIGHT / 2)]
    points += ((layout.x[node], layout.y[node]) for node in _between(edge, layout, rank))
    points.append((layout.x[edge.target], layout.y[edge.target] - _BOX_HEIGHT / 2))
    line = f"M{points[0][0]:g} {points[0][1]:g}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        line += f"C{x0:g} {middle:g} {x1:g} {middle:g} {x1:g} {y1:g}"
    (x0, y0), (x1, y1) = points[0], points[1]
    return _line(line, edge) + _label(edge, (x0 + x1) / 2, (y0 + y1) / 2)


def _between(edge: Edge, layout: _Layout, rank: dict[object, int]) -> list[object]:
    """Return the waypoints of an edge in the layers that it crosses."""
    for start in layout.down[edge.source]:
        found: list[object] = []
        node = start
        while not isinstance(node, str):
            found.append(node)
            node = layout.down[node][0]
        if node == edge.target and len(found) == rank[edge.target] - rank[edge.source] - 1:
            return found
    return []


def _draw_back(edge: Edge, layout: _Layout, lane: float) -> str:
    x0, y0 = layout.x[edge.source] + _BOX_WIDTH / 2, layout.y[edge.source]
    x1, y1 = layout.x[edge.target] + _BOX_WIDTH / 2, layout.y[edge.target]
    y1 += 8 if edge.source == edge.target else 0
    line = f"M{x0:g} {y0:g}C{lane:g} {y0:g} {lane:g} {y0:g} {lane:g} {(y0 + y1) / 2:g}S{lane:g} {y1:g} {x1:g} {y1:g}"
    return _line(line, edge) + _label(edge, lane, (y0 + y1) / 2)


def _line(path: str, edge: Edge) -> str:
    dashes = ' stroke-dasharray="5 4"' if edge.style is EdgeStyle.RARE else ""
    return f'<path d="{path}" fill="none" stroke="#475569" stroke-width="1.2"{dashes} marker-end="url(#tip)"/>'


def _label(edge: Edge, x: float, y: float) -> str:
    if not edge.label:
        return ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="#334155" stroke="#ffffff" stroke-width="3" '
        f'paint-order="stroke">{escape(_short(edge.label))}</text>'
    )


def _box(step_id: str, picture: Drawing, layout: _Layout) -> str:
    x, y = layout.x[step_id] - _BOX_WIDTH / 2, layout.y[step_id] - _BOX_HEIGHT / 2
    step = picture.steps.get(step_id)
    kind = "end" if step is None else step.type
    title = "end" if step is None else step.title
    round_corner = _BOX_HEIGHT / 2 if kind == "end" else 6
    about = "" if step is None or title == kind else kind
    name_y = layout.y[step_id] + (-2 if about else 4)
    text = (
        f'<g><title>{escape(shorten(step_id or "end"))}</title><rect x="{x:g}" y="{y:g}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}" rx="{round_corner:g}" fill="{_COLOURS.get(kind, "#f8fafc")}" stroke="#64748b"/>'
        f'<text x="{layout.x[step_id]:g}" y="{name_y:g}" text-anchor="middle" fill="#0f172a">'
        f"{escape(_short(title))}</text>"
    )
    if about:
        text += (
            f'<text x="{layout.x[step_id]:g}" y="{layout.y[step_id] + 14:g}" text-anchor="middle" font-size="10" '
            f'fill="#64748b">{escape(about)}</text>'
        )
    return f"{text}</g>"


def _short(text: str) -> str:
    text = shorten(text)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
