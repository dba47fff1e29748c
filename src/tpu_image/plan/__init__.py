"""A change set: what differs, how it is shown, how it is written to a tree and taken back.

:class:`Plan` says what is to change, :func:`apply` writes it into a directory (or ``/``), :func:`undo` puts
back what was there before the first ``apply``. ``writer.py`` writes to a hostile tree without leaving it;
``journal.py`` and ``journal_file.py`` let a power cut at any moment be taken back.
"""

from tpu_image.plan.apply import Applied, apply
from tpu_image.plan.change import Change, Plan, PlanError
from tpu_image.plan.journal import JOURNAL
from tpu_image.plan.undo import Kept, Undone, undo

__all__ = ["JOURNAL", "Applied", "Change", "Kept", "Plan", "PlanError", "Undone", "apply", "undo"]
