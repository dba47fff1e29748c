from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tpu_image.formats.yaml_text import (
    DEPTH_LIMIT,
    NODE_LIMIT,
    TEXT_LIMIT,
    Mapping,
    Node,
    Scalar,
    Sequence,
    YamlError,
    parse,
)

REFUSED = {
    "open list": ("a: [\n", 2, 1, "expected"),
    "tab as indentation": ("a:\n\tb: 1", 2, 1, "cannot start any token"),
    "unknown tag on a value": ("a: !secret x", 1, 4, "unknown tag '!secret'"),
    "unknown tag on a list": ("a: !secret [x]", 1, 4, "unknown tag"),
    "python object": ("a: !!python/object/apply:os.system [id]", 1, 4, "unknown tag"),
    "impossible date": ("a: 2024-99-99", 1, 4, "no valid timestamp"),
    "word tagged as a boolean": ("a: !!bool maybe", 1, 4, "no valid bool"),
    "second document": ("a: 1\n---\nb: 2", 2, 1, "another document"),
    "alias of nothing": ("a: *b", 1, 4, "undefined alias"),
    "anchor twice": ("a: &x 1\nb: &x 2", 2, 4, "duplicate anchor"),
    "key that is a list": ("? [a]\n: 1", 1, 3, "single value"),
    "merge of a number": ("a: {<<: 1}", 1, 9, "takes a mapping"),
    "control character": ("a: b\nc: \x01", 2, 4, "U+0001"),
    "byte that is not UTF-8": ("a: \udcff", 1, 4, "U+DCFF"),
    "alias inside what it names": ("a: &a [*a]", 1, 4, "inside one another"),
    "deep flow": ("[" * 5000, 1, DEPTH_LIMIT + 1, "inside one another"),
    "deep block": ("- " * 5000, 1, 2 * DEPTH_LIMIT + 1, "inside one another"),
    "long number": ("a: " + "9" * 5000, 1, 4, "number of more than"),
    "many values": ("- a\n" * (NODE_LIMIT + 1), NODE_LIMIT, 3, "values"),
    "long text": ("#" * (TEXT_LIMIT + 1), 0, 0, "longer than"),
}


@pytest.mark.parametrize(("text", "line", "column", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_a_safe_loader_would_not_take_is_refused_at_its_place(
    text: str, line: int, column: int, reason: str
) -> None:
    with pytest.raises(YamlError) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert reason in caught.value.reason
    assert len(str(caught.value)) < 300


def test_an_unquoted_mode_is_a_number_at_its_place() -> None:
    root = parse("files:\n - permissions: 0444\n").root
    assert isinstance(root, Mapping)
    files = root.get("files")
    assert isinstance(files, Sequence)
    entry = files.items[0]
    assert isinstance(entry, Mapping)
    assert entry.get("permissions") == Scalar(292, "0444", 2, 17)


def test_a_key_that_stands_twice_is_listed_and_its_last_value_kept() -> None:
    document = parse("a: 1\nb: 2\na: 3\n")
    assert plain(document.root) == {"a": 3, "b": 2}
    assert [(d.key, d.line, d.first_line) for d in document.duplicates] == [("a", 3, 1)]


def test_a_merged_key_may_be_set_again() -> None:
    document = parse("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n")
    assert plain(document.root) == {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}
    assert document.duplicates == ()


def test_comments_alone_hold_nothing() -> None:
    assert parse("# nothing\n").root is None


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(width=st.integers(2, 12), levels=st.integers(6, 40), merge=st.booleans())
def test_aliases_do_not_expand_beyond_the_limit(width: int, levels: int, merge: bool) -> None:
    lines = ["v0: &v0 {x: 1}"]
    for level in range(1, levels):
        aliases = ", ".join([f"*v{level - 1}"] * width)
        lines.append(f"v{level}: &v{level} {{{'<<' if merge else 'y'}: [{aliases}]}}")
    expanded = width**levels
    try:
        parse("\n".join(lines))
    except YamlError as error:
        reason = error.reason
    else:
        reason = "values" if expanded < NODE_LIMIT * width else "it was expanded"
    assert "values" in reason


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.binary(max_size=20) | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(plain_values)
def test_what_pyyaml_writes_is_read_as_pyyaml_reads_it(value: object) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    assert plain(parse(text).root) == yaml.safe_load(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:- \n\t[]{}&*!|>'\"#%?,<0.", max_size=40))
def test_any_text_is_read_as_pyyaml_reads_it_or_refused(text: str) -> None:
    try:
        expected = yaml.safe_load(text)
    except Exception:
        with pytest.raises(YamlError):
            parse(text)
        return
    assert repr(plain(parse(text).root)) == repr(expected)


def test_without_pyyaml_the_text_is_not_judged() -> None:
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from tpu_image.formats import yaml_text\n"
        "try: yaml_text.parse('a: 1')\n"
        "except yaml_text.PyYamlMissingError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"}
    )
    assert done.stdout == "PyYAML is needed to read this\n"


def plain(node: Node | None) -> object:
    """What ``yaml.safe_load`` gives."""
    if node is None:
        return None
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Mapping):
        return {key.value: plain(value) for key, value in node}
    return [plain(item) for item in node.items]
