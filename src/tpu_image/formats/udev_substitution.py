"""The values of one udev event: its properties, and what ``$name`` and ``%letter`` stand for in it.

Sources: udev(7), section "SUBSTITUTIONS"; systemd's ``udev-event.c``, versions 249 to 257.
"""

from __future__ import annotations

from tpu_image.formats.udev_model import Device, Outcome
from tpu_image.formats.udev_values import Budget, Substitution, glob_matches, split_format

NAME_LIMIT, PATH_LIMIT, LINE_LIMIT = 512, 1024, 16384
"""Bytes at which udev gives up a value (``UDEV_NAME_SIZE``, ``UDEV_PATH_SIZE``, ``UDEV_LINE_SIZE``)."""


class TooLongError(Exception):
    """A value outgrew udev's buffer: a comparison fails, an assignment is left out."""


class EventValues:
    """What is known of an event while rules are applied to it.

    Attributes:
        parent: the device that the last comparison of parents settled on, for sure if ``parent_sure``.
        result: output of the last ``PROGRAM``; None where one may have run.
        unknown_properties: patterns of properties that an ``IMPORT`` may have set.
    """

    def __init__(self, device: Device, action: str, budget: Budget) -> None:
        self.device = device
        self.action = action
        self.budget = budget
        self.parent: Device | None = None
        self.parent_sure = True
        self.result: str | None = ""
        self.unknown_properties: list[str] = []
        self.outcome = Outcome()
        self.outcome.tags.update(dict.fromkeys(device.tags, True))
        self.outcome.properties.update(_kernel_properties(device, action))

    def property(self, name: str) -> str | None:
        """Give a property, empty where it is not set; None where that is not known."""
        if name in self.outcome.properties:
            return self.outcome.properties[name]
        self.budget.spend(len(self.unknown_properties))
        unknown = any(glob_matches(p, name, self.budget) for p in self.unknown_properties)
        return None if unknown else ""

    def forget_properties(self, name_pattern: str) -> None:
        """Note that the properties whose names match may have any value from here on."""
        self.budget.spend(len(self.unknown_properties) + len(self.outcome.properties))
        if name_pattern not in self.unknown_properties:
            self.unknown_properties.append(name_pattern)
        for name in self.outcome.properties:
            if name not in self.device.properties and glob_matches(name_pattern, name, self.budget):
                self.outcome.properties[name] = None
        self.outcome.properties.update(_kernel_properties(self.device, self.action))

    def substitute(self, value: str, limit: int) -> str | None:
        """Fill in a value; None where a part is not known.

        Raises:
            TooLongError: the result has ``limit`` bytes or more.
        """
        if "$" not in value and "%" not in value:
            return value
        parts: list[str] = []
        length = 0
        for piece in split_format(value)[0]:
            self.budget.spend(1)
            text = piece if isinstance(piece, str) else self._substitution(piece)
            if text is None:
                return None
            parts.append(text)
            length += len(text.encode("utf-8", "surrogateescape"))
            if length >= limit:
                raise TooLongError
        return "".join(parts)

    def _substitution(self, wanted: Substitution) -> str | None:  # noqa: C901 - one branch a name
        device, name = self.device, wanted.name
        if name == "kernel":
            return device.kernel
        if name == "devpath":
            return device.devpath
        if name == "attr":
            return self._attribute_text(wanted.attribute)
        if name == "env":
            return self.property(wanted.attribute)
        if name == "number":
            base = device.kernel.rstrip("0123456789")
            return device.kernel[len(base) :] if base else ""
        if name in ("id", "driver"):
            parent = self.parent or Device("")
            return (parent.kernel if name == "id" else parent.driver) if self.parent_sure else None
        if name in ("major", "minor"):
            return self.property(name.upper()) or ("0" if not device.node else None)
        if name == "devnode":
            return device.node
        if name == "name":
            return (device.node[len("/dev/") :] if device.node else device.kernel) or None
        if name == "parent":
            return device.parent.node[len("/dev/") :] if device.parent else ""
        if name == "links":
            self.budget.spend(len(self.outcome.links))
            return " ".join(self.outcome.links) if all(self.outcome.links.values()) else None
        if name == "result":
            return self.result if not wanted.attribute else None
        return {"root": "/dev", "sys": "/sys"}[name]

    def _attribute_text(self, name: str) -> str | None:
        if name.startswith("["):
            return None
        for device in (self.device, self.parent or self.device):
            if device is not self.device and not self.parent_sure:
                return None
            if name in device.attributes:
                text = device.attributes[name].rstrip()
                return "".join(c if c.isalnum() or c in "#+-.:=@_/ $%?,\\" else "_" for c in text)
            if not device.complete:
                return None
        return ""


def _kernel_properties(device: Device, action: str) -> dict[str, str]:
    """Give the properties that every event of the device carries."""
    known = {
        "ACTION": action,
        "DEVPATH": device.devpath,
        "SUBSYSTEM": device.subsystem,
        "DRIVER": device.driver,
        "DEVNAME": device.node,
        **device.properties,
    }
    return {name: value for name, value in known.items() if value}
