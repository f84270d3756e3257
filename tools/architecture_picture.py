"""Makes ``docs/images/architecture.svg``: an FT group, and the pipeline inside its active server.

``python -m tools.gen_docs`` writes it with the generated pages. Tests compare it with the committed
file and its words with the packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

TARGET = "docs/images/architecture.svg"
WIDTH, HEIGHT = 980, 640

#: The steps of the pipeline, the package of each, and what it does.
STEPS = (
    ("parse", "wire", "bytes to messages"),
    ("apply", "broker", "change memory"),
    ("commit", "stores", "write and sync"),
    ("confirm", "ft", "store still ours?"),
    ("emit", "nats", "deliver, then ack"),
)

#: The packages beside the pipeline in the active server, what they do, and where they are drawn:
#: left and right of the two arrows from the pipeline to the datastore.
BESIDE = (
    ("node/", "start, recover, stop, hand over", 36, 356, 296),
    ("monitor/", "over HTTP: pages, metrics, dashboard", 36, 412, 296),
    ("admin/", "requests of administrators", 487, 356, 169),
    ("ft/watch.py", "probes storage each second", 487, 412, 169),
)

_STYLE = """
text { font: 13px sans-serif; fill: #1c2733 }
.title { font-weight: bold }
.small { font-size: 11px; fill: #4a5866 }
.code { font: 12px monospace }
.outer { fill: #f4f7fa; stroke: #8fa3b5 }
.box { fill: #ffffff; stroke: #8fa3b5 }
.step { fill: #e3effb; stroke: #3f7cb8 }
.store { fill: #fdf3df; stroke: #c08a2b }
.nats { fill: #e6f4e8; stroke: #4e9a5b }
.line { fill: none; stroke: #4a5866; stroke-width: 1.5 }
.weak { fill: none; stroke: #4a5866; stroke-width: 1.5; stroke-dasharray: 5 4 }
""".strip()

_HEAD = """<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" \
markerHeight="8" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="#4a5866"/>\
</marker></defs>"""


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; ``style`` is a class of the style sheet."""

    x: float
    y: float
    words: str
    style: str = ""
    anchor: str = "middle"

    @property
    def width(self) -> float:
        """About how wide it is drawn."""
        widths = {"code": 7.3, "small": 5.9, "title": 7.9, "": 7.2}
        return widths[self.style] * len(self.words)

    def svg(self) -> str:
        """The element."""
        style = f' class="{self.style}"' if self.style else ""
        at = f'x="{self.x:g}" y="{self.y:g}" text-anchor="{self.anchor}"'
        return f"<text {at}{style}>{escape(self.words, quote=False)}</text>"


@dataclass(frozen=True, slots=True)
class Box:
    """A rounded box with lines of text: at its top if it holds other boxes, else in its middle."""

    x: float
    y: float
    width: float
    height: float
    style: str
    lines: tuple[tuple[str, str], ...] = ()
    """Words and style of each line."""

    def texts(self) -> list[Text]:
        """Its lines, each at its place."""
        middle = self.x + self.width / 2
        above = 20.0
        if self.style != "outer":
            above = self.height / 2 + 5 - 8 * (len(self.lines) - 1)
        return [
            Text(middle, self.y + above + 16 * i, words, style)
            for i, (words, style) in enumerate(self.lines)
        ]

    def svg(self) -> str:
        """The elements."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        box = f'<rect x="{self.x:g}" y="{self.y:g}" {size} rx="6" class="{self.style}"/>'
        return "\n".join([box, *(text.svg() for text in self.texts())])


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line through ``points``; ``weak`` is dashed, ``both`` has a head at each end."""

    points: tuple[tuple[float, float], ...]
    weak: bool = False
    both: bool = False

    def svg(self) -> str:
        """The element."""
        path = "L".join(f"{x:g} {y:g}" for x, y in self.points)
        heads = 'marker-end="url(#head)"' + (' marker-start="url(#head)"' if self.both else "")
        return f'<path d="M{path}" class="{"weak" if self.weak else "line"}" {heads}/>'


def boxes() -> list[Box]:
    """Every box, the outer ones first."""
    plain = ""
    found = [
        Box(20, 16, 660, 46, "box", (("STAN clients: Go, Node.js, Python, C, Java, C#", "title"),)),
        Box(
            710,
            16,
            250,
            46,
            "box",
            (("Operators", "title"), ("ftstanctl", "small")),
        ),
        Box(
            20,
            112,
            940,
            46,
            "nats",
            (
                ("NATS: one nats-server embedded in each member, joined by routes", "title"),
                ("or external NATS servers (-ns)", "small"),
            ),
        ),
        Box(20, 222, 660, 250, "outer", (("Active server: the owner of the datastore", "title"),)),
        Box(710, 222, 250, 250, "outer", (("Standby: waits to take over", "title"),)),
        Box(
            20,
            540,
            940,
            84,
            "store",
            (
                ("One datastore on storage that all members share", "title"),
                ("channels: msgs.N.dat, msgs.N.idx, subs.dat", "code"),
                ("root: server.dat, clients.dat, ft.epoch, .rootdir.lck", "code"),
            ),
        ),
    ]
    found += [
        Box(
            36 + 127 * i,
            262,
            112,
            76,
            "step",
            ((name, "title"), (f"{package}/", "code"), (does, "small")),
        )
        for i, (name, package, does) in enumerate(STEPS)
    ]
    found += [
        Box(x, y, width, 44, "box", ((part, "code"), (does, "small")))
        for part, does, x, y, width in BESIDE
    ]
    found += [
        Box(
            726, 262, 218, 44, "box", (("hears heartbeats", plain), ("silence: suspicion", "small"))
        ),
        Box(
            726,
            316,
            218,
            44,
            "box",
            (("asks for the lock", plain), ("granted: claims the next epoch", "small")),
        ),
        Box(
            726,
            370,
            218,
            44,
            "box",
            (("reads ahead", plain), ("so that a takeover is short", "small")),
        ),
    ]
    return found


def labels() -> list[Text]:
    """The words at arrows."""
    start = "start"
    return [
        Text(360, 92, "publish, subscribe, ack", "small", start),
        Text(845, 92, "admin requests", "small", start),
        Text(110, 196, "one read of the socket = one batch", "small", start),
        Text(616, 196, "replies, deliveries, acks", "small", "end"),
        Text(700, 182, "heartbeats", "small"),
        Text(352, 512, "data, one sync a file", "small", start),
        Text(479, 512, "reads ft.epoch after the last sync", "small", start),
        Text(845, 512, "lock, epoch", "small", start),
    ]


def arrows() -> list[Arrow]:
    """Every arrow."""
    steps = [Arrow(((148 + 127 * i, 300), (161 + 127 * i, 300))) for i in range(len(STEPS) - 1)]
    return [
        *steps,
        Arrow(((350, 62), (350, 110)), both=True),
        Arrow(((835, 62), (835, 110)), both=True),
        Arrow(((92, 158), (92, 260))),
        Arrow(((634, 260), (634, 160))),
        Arrow(((670, 222), (670, 190), (730, 190), (730, 222)), weak=True, both=True),
        Arrow(((346, 338), (346, 538))),
        Arrow(((473, 338), (473, 538)), weak=True, both=True),
        Arrow(((835, 472), (835, 538)), both=True),
    ]


def picture() -> str:
    """The SVG."""
    title = "An FT group: clients, NATS, an active and a standby server, one datastore"
    outer = [box for box in boxes() if box.style == "outer"]
    inner = [box for box in boxes() if box.style != "outer"]
    parts: list[Box | Arrow | Text] = [*outer, *arrows(), *inner, *labels()]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            _HEAD,
            '<rect width="100%" height="100%" fill="#fff"/>',
            *(part.svg() for part in parts),
            "</svg>\n",
        ]
    )
