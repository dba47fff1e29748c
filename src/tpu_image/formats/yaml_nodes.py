"""The part of :mod:`~tpu_image.formats.yaml_text` that needs PyYAML: import that module, never this one.

PyYAML composes with recursion and lets aliases expand without limit, so both are bounded here. Its pure
Python loader is used, since cloud-init uses it and libyaml differs from it in what it takes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import yaml

from tpu_image.formats.yaml_text import (
    DEPTH_LIMIT,
    NODE_LIMIT,
    NUMBER_LIMIT,
    Document,
    Duplicate,
    Mapping,
    Node,
    Scalar,
    Sequence,
    YamlError,
    YamlLimitError,
)

MERGE_TAG = "tag:yaml.org,2002:merge"
REASON_LIMIT = 200
NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def compose(text: str) -> Document:
    """Read one document into nodes.

    Raises:
        YamlError: as :func:`tpu_image.formats.yaml_text.parse` says.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        converter = _Converter(loader)
        return Document(None if root is None else converter.node(root), tuple(converter.duplicates))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        raise YamlError(
            f"character U+{ord(text[error.position]):04X} is not allowed in YAML",
            before.count("\n") + 1,
            error.position - before.rfind("\n"),
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else ()
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(reason[:REASON_LIMIT], *place) from None


class _Loader(yaml.SafeLoader):
    """A safe loader whose composer stops at the limits."""

    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        **yaml.SafeLoader.yaml_constructors,
        # As cloud-init adds it (cloudinit/safeyaml.py).
        "tag:yaml.org,2002:python/unicode": yaml.SafeLoader.construct_yaml_str,
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._composed = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one value with all below it; an alias counts as one value."""
        self._composed += 1
        self._depth += 1
        _bound(self._composed, self._depth, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Converter:
    """Turns composed nodes into ours, visiting an aliased node again for each alias."""

    def __init__(self, loader: _Loader) -> None:
        self.duplicates: dict[Duplicate, None] = {}
        self._loader = loader
        self._visited = 0
        self._depth = 0

    def node(self, node: yaml.Node) -> Node:
        self._visited += 1
        self._depth += 1
        # An alias inside what it names has no end: the depth stops it.
        _bound(self._visited, self._depth, node.start_mark)
        converted = self._convert(node)
        self._depth -= 1
        return converted

    def _convert(self, node: yaml.Node) -> Node:
        place = (node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, yaml.ScalarNode):
            return Scalar(self._value(node), node.value, *place)
        if node.tag not in self._loader.yaml_constructors:
            raise _marked(f"unknown tag {node.tag!r}", node.start_mark)
        if isinstance(node, yaml.SequenceNode):
            return Sequence(tuple(self.node(item) for item in node.value), *place)
        return Mapping(self._entries(node), *place)

    def _value(self, node: yaml.ScalarNode) -> Any:
        if node.tag not in self._loader.yaml_constructors:
            raise _marked(f"unknown tag {node.tag!r}", node.start_mark)
        if node.tag in NUMBER_TAGS and len(node.value) > NUMBER_LIMIT:
            raise _beyond(f"a number of more than {NUMBER_LIMIT} characters", node.start_mark)
        try:
            return self._loader.yaml_constructors[node.tag](self._loader, node)
        except (ValueError, LookupError, AttributeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise _marked(f"{node.value[:40]!r} is no valid {kind}", node.start_mark) from None

    def _entries(self, node: yaml.Node) -> tuple[tuple[Scalar, Node], ...]:
        own: dict[Any, tuple[Scalar, Node]] = {}
        merged: dict[Any, tuple[Scalar, Node]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == MERGE_TAG:
                for mapping in self._merged(value_node):
                    for key, value in mapping:
                        merged.setdefault(key.value, (key, value))
                continue
            key, value = self._key(key_node), self.node(value_node)
            if key.value in own:
                first = own[key.value][0].line
                self.duplicates[Duplicate(key.text, key.line, key.column, first)] = None
            own[key.value] = (key, value)
        return tuple({**merged, **own}.values())

    def _key(self, node: yaml.Node) -> Scalar:
        key = self.node(node)
        if not isinstance(key, Scalar):
            raise _marked("a key must be a single value", node.start_mark)
        return key

    def _merged(self, node: yaml.Node) -> list[Mapping]:
        merged = self.node(node)
        mappings = merged.items if isinstance(merged, Sequence) else (merged,)
        if not all(isinstance(mapping, Mapping) for mapping in mappings):
            raise _marked("'<<' takes a mapping or a list of mappings", node.start_mark)
        return [mapping for mapping in mappings if isinstance(mapping, Mapping)]


def _bound(count: int, depth: int, mark: Any) -> None:
    if count > NODE_LIMIT:
        raise _beyond(f"more than {NODE_LIMIT} values, aliases expanded", mark)
    if depth > DEPTH_LIMIT:
        raise _beyond(f"more than {DEPTH_LIMIT} values stand inside one another", mark)


def _beyond(reason: str, mark: Any) -> YamlLimitError:
    return YamlLimitError(reason, mark.line + 1, mark.column + 1)


def _marked(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
