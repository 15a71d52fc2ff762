"""The head's text process; the head starts it, nobody else does."""

from __future__ import annotations

from bus.text.process import main
from head.text.jobs import TextJobs

if __name__ == "__main__":
    main(lambda: TextJobs().handlers(), "A text process of the head.")
