r"""The configuration language: what each text means, and how what means nothing is refused."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.config.grammar import parse, read_text
from ftstan.config.tree import Place
from ftstan.config.values import plain

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.config.tree import Document


def parse_file(path: str, environment: dict[str, str] | None = None) -> Document:
    return parse(read_text(path), path, environment)


def value_of(text: str, environment: dict[str, str] | None = None) -> Any:
    """The tree without its places."""
    entries = parse(text, "s.conf", environment or {}).entries
    return {key: plain(node.value) for key, node in entries.items()}


#: Of several equal texts each is a line; the newest dialect, and older ones where that fails.
VECTORS: list[tuple[list[str], Any]] = [
    (
        ["a: 1", "a = 1", "a 1", "a=1", "a :1", "{a:1}", "a\n1", "\ta\t:\t1\t", "a: 1;", "a: 1,"],
        {"a": 1},
    ),
    (
        ["a: 1;b: 2", "a: 1,b: 2", "{ a: 1, b: 2 }", "a: 1\n\n\nb: 2\n", '{"a": 1, "b": 2}'],
        {"a": 1, "b": 2},
    ),
    (["a: 1\na: 2"], {"a": 2}),
    (["a: 1\nA: 2"], {"a": 1, "A": 2}),
    (["a:=1", "a==1"], {"a": "=1"}),
    (["a: 1 # c", "a: 1//c", "a: 1# c", "# x\na: 1", "// x\na: 1 //"], {"a": 1}),
    (["a: foo # c", "a: foo", "a: 'foo'", 'a: "foo"', "a: foo'"], {"a": "foo"}),
    (["a: foo#bar"], {"a": "foo#bar"}),
    (["a: foo//bar"], {"a": "foo//bar"}),
    (["a: true", "a: TRUE", "a: yes", "a: On"], {"a": True}),
    (["a: off", "a: NO", "a: false"], {"a": False}),
    (['a: "true"', "a: 'true'", "a: true'"], {"a": "true"}),
    (["a: truex"], {"a": "truex"}),
    (["a: null"], {"a": "null"}),
    (["a: 'a\"b'"], {"a": 'a"b'}),
    (['a: "a\'b"'], {"a": "a'b"}),
    ([r'a: "x\ty\n\"\\\r"'], {"a": 'x\ty\n"\\\r'}),
    ([r"a: x\ty"], {"a": "x\ty"}),
    ([r"a: 'x\ty'"], {"a": r"x\ty"}),
    ([r'a: "\x41\x42"'], {"a": "AB"}),
    ([r'a: "\xc3\xa9"'], {"a": "é"}),
    (["a: -1"], {"a": -1}),
    (["a: -1k"], {"a": -1000}),
    (["a: 1.5"], {"a": 1.5}),
    (["a: -1.5"], {"a": -1.5}),
    (["a: +1"], {"a": "+1"}),
    (["a: 007"], {"a": 7}),
    (["a: 1k", "a: 1K"], {"a": 1000}),
    (["a: 1m"], {"a": 1_000_000}),
    (["a: 1g"], {"a": 1_000_000_000}),
    (["a: 1kb", "a: 1KB", "a: 1Kb", "a: 1ki", "a: 1KiB"], {"a": 1024}),
    (["a: 1MB", "a: 1Mi"], {"a": 1 << 20}),
    (["a: 1GB", "a: 1GiB"], {"a": 1 << 30}),
    (["a: 1t"], {"a": 10**12}),
    (["a: 1TB", "a: 1ti"], {"a": 1 << 40}),
    (["a: 1p"], {"a": 10**15}),
    (["a: 1PiB"], {"a": 1 << 50}),
    (["a: 1e"], {"a": 10**18}),
    (["a: 1EB"], {"a": 1 << 60}),
    (["a: 9223372036854775807"], {"a": (1 << 63) - 1}),
    (["a: -9223372036854775808"], {"a": -1 << 63}),
    (["a: 2016-05-04T18:53:41Z"], {"a": "2016-05-04T18:53:41Z"}),
    (
        [
            "a: [1,2,3 ]",
            "a: [\n1,\n2,\n3\n]",
            "a: [ 1 # x\n 2 // y\n 3 ]",
            "a: [1,2,3]",
            "a: [1,2,3,]",
        ],
        {"a": [1, 2, 3]},
    ),
    (["a: [x,y]", 'a: ["x","y"]', "a: ['x'\n'y']", "a: [x,\n\n# c\ny]"], {"a": ["x", "y"]}),
    (["a: [1.5]"], {"a": [1.5]}),
    (["a: [-1]"], {"a": [-1]}),
    (["a: [127.0.0.1]"], {"a": ["127.0.0.1"]}),
    (["a: [true, no]"], {"a": [True, False]}),
    (["a: []"], {"a": []}),
    (["a: [[1], [2\n3]]"], {"a": [[1], [2, 3]]}),
    (["a: [1k]"], {"a": ["1k"]}),
    (["a: [1k ]"], {"a": [1000]}),
    (["a: [{x:1}, {x:2}]", "a: [{x:1}\n{x:2}]"], {"a": [{"x": 1}, {"x": 2}]}),
    (
        ["a {b: 1, c: 2}", "a: {b: 1; c: 2}", "a {\n b 1\n c 2\n}", "a {\n b:\n 1\n c = 2,\n}"],
        {"a": {"b": 1, "c": 2}},
    ),
    (["a {b: 1 # x\n c: 2 // y\n}", "a { b: 1 /c: 2 }"], {"a": {"b": 1, "c": 2}}),
    (["a {b: 5,,c: 6}"], {"a": {"b": 5, ",c": 6}}),
    (["a: 1 ; ; b: 2"], "a value must follow"),
    (["a{b:1}"], {"a{b": 1}),
    (['a {"b c": 1}'], {"a": {"b c": 1}}),
    (["foo.> {max: 1}"], {"foo.>": {"max": 1}}),
    (["a { > : 1 }"], {"a": {">": 1}}),
    (["a { * {b:1} }"], {"a": {"*": {"b": 1}}}),
    (["a (\nfoo\nbar\n)\nb: 1"], {"a": "\nfoo\nbar\n", "b": 1}),
    (["a (\nfoo )\n)\n", "a (\nfoo )\n)"], {"a": "\nfoo )\n"}),
    (["v: 5\na: $v"], {"v": 5, "a": 5}),
    (["v: 1\ns {v: 2, a: $v}"], {"v": 1, "s": {"v": 2, "a": 2}}),
    (["v {x: 1}\na: $v\nb: [$v ]"], {"v": {"x": 1}, "a": {"x": 1}, "b": [{"x": 1}]}),
    (['a: "$v"'], {"a": "$v"}),
    (["a: x$v"], {"a": "x$v"}),
    (["a: $2a$10$abc"], {"a": "$2a$10$abc"}),
    (['s {a: ""}'], {"s": {"a": ""}}),
    (["s { a: ; b: 1 }"], {"s": {"a": "", "b": 1}}),
    (["s {a: }", "s { a }"], {"a": {}}),
    (["a: ;", "a: ,", "a: }", "a:", "a: ", "a ="], {"a": ""}),
    (["", "{}", "}", "{{{", "\n\n", "# nothing"], {}),
    (["a: 1}", "{a: 1", "{ a: 1\n }\n"], {"a": 1}),
    (["a: 1\0b: 2"], {"a": 1, "b": 2}),
    (["include: x"], {"include": "x"}),
    (["'include' x"], {"include": "x"}),
]
#: Texts without quotes, though some begin like numbers.
WORDS = [
    *(
        "1B",
        "10s",
        "1h30m",
        "1d",
        "5ms",
        "100ms",
        "10mins",
        "1kx",
        "2e5",
        "0x10",
        "1_000",
        "100%",
        "1/2",
    ),
    *(
        "127.0.0.1",
        "127.0.0.1:4222",
        "1.2.3-4",
        "::1",
        "localhost:4222",
        "nats://h:4222",
        "user:pass@host",
    ),
]
CASES = [(text, expected) for texts, expected in VECTORS for text in texts]
CASES += [(f"a: {word}", {"a": word}) for word in WORDS]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_text_means_what_it_means_to_the_original(text: str, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(ConfigError):
            value_of(text)
    else:
        assert value_of(text) == expected


TOP = "'Expected a top-level value to end with a new line, comment or EOF, but got '"
ARRAY = '\'Expected an array value terminator "," or an array terminator "]", but got \''
LINE = "Parse error on line "


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a:1 b:2",
            "a:: 1",
            "a: foo bar",
            "a: a'b",
            r'a: "\q"',
            "a: 1.5h",
            "a: 1.5MB",
            "a: 1.",
            "a: .5",
            "a: 1 KB",
        ),
        *(
            "a: 9223372036854775808",
            "a: -9223372036854775809",
            "a: 10EB",
            "a: 1kbb",
            "a: " + "9" * 5000,
        ),
        *("a: 10.0.0.1/8", "a: [::1]:4222", "a: 2016-05-04", "a: 1-2", "a: 2016-13-45T00:00:00Z"),
        *("a: " + "1" * 400 + ".0", "a: $v\nv: 1", "a: ${v}", "a " + "{ a " * 101),
        *("a: [a b]", "a: [1;2]", "a: [1,,2]", "a: [,1]", "a: [ {x: 1} {x: 2} ]", "a {b: 1 c: 2}"),
        *(
            "a: {b: 1",
            "a: [1",
            "a: 'x",
            'a: "x',
            "a (\nx\n",
            "a (\r\nx\r\n)\r\n",
            "a (\n )\n",
            "a { b: 1",
        ),
        *("a", "a: 1\nb", "/ x", "\0", "a:\n1", ": 1", "include [a]", "include\nx"),
        *("s {a:\n b: 1 }", "s { a:, b: 1 }", "s { = 1 }", "s { ] }"),
    ],
)
def test_a_text_that_means_nothing_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        value_of(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("\n a: 1 b", f"{LINE}2: {TOP}b' instead.'", "s.conf:2:7: "),
        ("a {\n  b: [1\n 2 x ]}", f"{LINE}3: {ARRAY}x' instead.'", "s.conf:3:4: "),
        (
            "a: [1,",
            f"{LINE}1: {ARRAY}end of file' instead.'",
            "s.conf:1:6: the array that begins at s.conf:1:4 ",
        ),
        (
            "a: 'x\ny",
            f"{LINE}2: 'Unexpected EOF.'",
            "the string that begins at s.conf:1:4 never ends",
        ),
        (
            "a {\nb: 1\n",
            f"{LINE}3: 'Unexpected EOF processing map.'",
            "the map that begins at s.conf:1:3 never ends",
        ),
        (
            "a (\nb",
            f"{LINE}2: 'Unexpected EOF processing block.'",
            "the block that begins at s.conf:1:3 never ends",
        ),
        (
            "a: 1-2",
            f"{LINE}1: 'All ISO8601 dates must be in full Zulu form.'",
            "s.conf:1:5: put it in quotes",
        ),
        (
            "x: 1\na: $b",
            "variable reference for 'b' on line 2 can not be found",
            "s.conf:2:4: define it above",
        ),
        (
            "a: 99999999999999999999",
            "integer '99999999999999999999' is out of the range",
            "s.conf:1:4: integers",
        ),
        ("x: 1\nlonely", "config is invalid (s.conf:2:1)", 'the key "lonely" has no value'),
    ],
)
def test_an_error_is_that_of_the_original_and_its_hint_names_the_place(
    text: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        value_of(text)
    assert caught.value.text == message
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", 42),
        ("1KB", 1024),
        ("true", True),
        ("[x, y]", ["x", "y"]),
        ('"q 1"', "q 1"),
        ("10s", "10s"),
        ("", ""),
    ],
)
def test_a_variable_of_the_environment_is_read_as_a_value(text: str, expected: Any) -> None:
    assert value_of("a: $X", {"X": text}) == {"a": expected}


@pytest.mark.parametrize("text", ["a b", "$X", "$Y", "5\ninclude s.conf"])
def test_a_variable_of_the_environment_that_is_no_value_is_an_error(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^variable reference for 'X' on line 1 could not be parsed"
    ):
        value_of("a: $X", {"X": text, "Y": "$X"})


def test_a_key_above_hides_the_environment_and_one_below_does_not() -> None:
    assert value_of("X: 1\na: $X", {"X": "2"})["a"] == 1
    assert value_of("a: $X\nX: 1", {"X": "2"})["a"] == 2


def test_dates_are_dates_in_utc() -> None:
    (node,) = parse("a: 2016-05-04T18:53:41Z", "s").entries.values()
    assert node.value == datetime(2016, 5, 4, 18, 53, 41, tzinfo=UTC)


def test_a_node_knows_where_its_key_stands() -> None:
    entries = parse("a: 1\ns {\n  b: [7,\n 8 ]\n}\n", "f.conf").entries
    inner = entries["s"].value
    assert isinstance(inner, dict)
    assert (entries["s"].place, inner["b"].place) == (Place("f.conf", 2, 1), Place("f.conf", 3, 3))
    items = inner["b"].value
    assert isinstance(items, list)
    assert [str(item.place) for item in items] == ["f.conf:3:7", "f.conf:4:2"]


def test_a_key_without_value_is_warned_about_when_it_swallows_its_map() -> None:
    (warning,) = parse("s {a: }", "f.conf").warnings
    assert warning.startswith('f.conf:1:4: the key "a" has no value')
    assert parse('s {a: ""}', "f.conf").warnings == ()


def write(directory: Path, **files: str) -> str:
    for name, text in files.items():
        path = directory / (name.replace("__", "/") + ".conf")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(directory / "s.conf")


class TestIncludes:
    def test_an_included_file_puts_its_keys_where_the_directive_stands(
        self, tmp_path: Path
    ) -> None:
        path = write(
            tmp_path,
            s="a: 1\nb { include 'in/x.conf'; c: 3 }\nINCLUDE y.conf\n",
            in__x="a: 2\n",
            y="a: 9\nd: $a\n",
        )
        assert {key: plain(node.value) for key, node in parse_file(path).entries.items()} == {
            "a": 9,
            "b": {"a": 2, "c": 3},
            "d": 9,
        }

    def test_a_path_is_relative_to_the_including_file_also_with_a_slash(
        self, tmp_path: Path
    ) -> None:
        path = write(tmp_path, s="include in/x.conf", in__x="include /y.conf", in__y="a: 1")
        assert parse_file(path).entries["a"].place.file.endswith("in/y.conf")

    def test_a_variable_sees_what_was_included_above_it_and_not_what_includes_it(
        self, tmp_path: Path
    ) -> None:
        path = write(tmp_path, s="include x.conf\nb: $a\n", x="a: 5")
        assert plain(parse_file(path).entries["b"].value) == 5
        path = write(tmp_path, s="a: 5\ninclude x.conf\n", x="b: $a")
        with pytest.raises(
            ConfigError, match="variable reference for 'a' on line 1 can not be found"
        ):
            parse_file(path, {})

    @pytest.mark.parametrize("name", ["s.conf", "./s.conf", "in/../s.conf", "in/x.conf"])
    def test_a_loop_is_named(self, name: str, tmp_path: Path) -> None:
        path = write(tmp_path, s=f"include {name}", in__x="include ../s.conf")
        with pytest.raises(ConfigError, match=r"include loop: .*s.conf -> .*s.conf"):
            parse_file(path)

    def test_the_same_file_may_be_included_twice(self, tmp_path: Path) -> None:
        path = write(tmp_path, s="a { include x.conf }\nb { include x.conf }\n", x="k: 1")
        assert [plain(node.value) for node in parse_file(path).entries.values()] == [
            {"k": 1},
            {"k": 1},
        ]

    def test_an_error_inside_names_both_files(self, tmp_path: Path) -> None:
        path = write(tmp_path, s="\n include x.conf", x='a: "\n')
        with pytest.raises(
            ConfigError, match=r"error parsing include file 'x\.conf', Parse error on line 2"
        ) as caught:
            parse_file(path)
        assert f"{path}:2:9" in caught.value.hint
        assert "x.conf:1:4" in caught.value.hint


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^open .*/no\.conf: no such file or directory$"):
        parse_file(str(tmp_path / "no.conf"))
    with pytest.raises(ConfigError, match=r"^read .*: is a directory$"):
        parse_file(str(tmp_path))
    with pytest.raises(ConfigError, match="invalid argument"):
        read_text("a\0b")


def test_a_pipe_is_read_to_its_end_and_one_without_a_writer_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe.conf"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"^read .*: is a pipe that nobody writes to$"):
        read_text(str(path))
    reader, writer = os.pipe()
    os.write(writer, b"a: 1")
    monkeypatch.setattr("ftstan.config.grammar._PATIENCE_MS", 0)
    with pytest.raises(ConfigError, match=r"^read .*: nothing came for 0 s$"):
        read_text(f"/proc/self/fd/{reader}")
    os.write(writer, b"b: 2")
    os.close(writer)
    assert read_text(f"/proc/self/fd/{reader}") == "b: 2"
    os.close(reader)


def test_a_file_without_end_is_refused_and_none_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=r"^read /dev/zero: has more than 16 MiB$"):
        read_text("/dev/zero")
    (tmp_path / "s.conf").write_text('include "zero"\n', encoding="utf-8")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"'zero', read .*/zero: has more than 16 MiB"):
        parse_file(str(tmp_path / "s.conf"))
    with pytest.raises(ConfigError, match="is a directory"):
        read_text(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before
    assert read_text("/dev/null") == ""


def test_bytes_that_are_not_utf8_survive(tmp_path: Path) -> None:
    (tmp_path / "s.conf").write_bytes(b"a: x\xffy")
    (node,) = parse_file(str(tmp_path / "s.conf")).entries.values()
    assert str(node.value).encode("utf-8", "surrogateescape") == b"x\xffy"


PIECES = st.sampled_from(
    [
        *"{}[]()'\":=;,#/$\\.-\n\t \r\0",
        "a",
        "b1",
        "include ",
        "1",
        "12",
        "1k",
        "2016",
        "true",
        "//",
        "\n)\n",
        "é",
        "x41",
        "T",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60))
@example("a\xa0b")
@example('a: "\\xff"')
def test_any_text_is_a_tree_or_a_config_error(text: str) -> None:
    try:
        document = parse(text, "s.conf", {"a": "1", "b1": text.replace("\0", "")})
    except ConfigError:
        return
    plain(document.entries)
