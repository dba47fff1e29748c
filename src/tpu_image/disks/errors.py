"""What can be wrong with a disk image, said in one line: what, where, and what to do now."""

from __future__ import annotations


class DiskError(Exception):
    """A disk image cannot be used: ``what`` is wrong, ``where`` it is, ``remedy`` says what to do now."""

    def __init__(self, what: str, where: str, remedy: str) -> None:
        super().__init__(f"{where}: {what}; {remedy}")
        self.what = what
        self.where = where
        self.remedy = remedy


class UnsupportedError(DiskError):
    """The image is sound as far as was seen, and has a feature that is not supported; ``what`` names it."""


class DamagedError(DiskError):
    """The image contradicts itself or its format, or is cut short."""

    def __init__(self, what: str, where: str, remedy: str = "get the image again, or repair it") -> None:
        super().__init__(what, where, remedy)
