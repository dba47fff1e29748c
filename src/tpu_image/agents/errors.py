"""What can be wrong with an agent's image, said in one line: what, where, and what to do now."""

from __future__ import annotations

GET_AGAIN = "get the image again"


class AgentError(Exception):
    """An agent cannot be got or installed: ``what`` is wrong, ``where`` it is, ``remedy`` says what to do now."""

    def __init__(self, what: str, where: str, remedy: str) -> None:
        super().__init__(f"{where}: {what}; {remedy}")
        self.what = what
        self.where = where
        self.remedy = remedy


class ImageError(AgentError):
    """An image contradicts itself or its format, asks for what is refused, or is cut short."""

    def __init__(self, what: str, where: str, remedy: str = GET_AGAIN) -> None:
        super().__init__(what, where, remedy)
