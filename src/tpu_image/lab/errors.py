"""What keeps a boot in the lab from taking place, said in one line: what, and what to do now."""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot do what was asked: ``what`` is wrong, ``remedy`` says what to do now."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy
