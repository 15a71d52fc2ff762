"""Whether the threads of a session wait for the next operator awake. Pure.

Threads that spin start on an operator at once: on processors that are otherwise idle, a step of
few rows is a fifth to a third faster than with threads that sleep in between. Where other work
wants the processors, a spinning thread takes them from the one it waits for, and a step takes up
to four times as long. Which of both holds shows in the processor time that spinning threads get:
all of it, or not.
"""

from __future__ import annotations

#: Spinning threads are judged after running for so long: tens of steps of a small model, and of
#: any model less than what a person notices.
WINDOW_S = 0.2
#: With less than this share of the processors, threads that sleep are faster. Two threads on two
#: processors got 0.94 alone, where spinning gained 17 to 35%; 0.79 to 0.82 beside a neighbour that
#: wants a quarter of one (12% gained), 0.69 to 0.72 beside half of one (from 13% gained to 12%
#: lost), 0.58 beside a whole one (8 to 27% lost), 0.15 to 0.25 beside five (40 to 70% lost).
LEAST_SHARE = 0.72
#: Seconds of running without spinning before it is tried again: at first, and at most. A try costs
#: a window.
FIRST_CALM_S = 1.0
MOST_CALM_S = 32.0


class SpinPolicy:
    """Owns the choice for one worker; told of every run.

    Args:
        threads: of the session.

    Attributes:
        spinning: whether the next run should be by threads that spin.
    """

    def __init__(self, threads: int) -> None:
        self.spinning = True
        self._threads = threads
        self._wall_s = 0.0
        self._cpu_s = 0.0
        #: How long the next calm will be, and what is left of this one.
        self._calm_s = FIRST_CALM_S
        self._left_s = 0.0

    def note(self, wall_s: float, cpu_s: float) -> None:
        """Count a run in the way that was chosen.

        Args:
            wall_s: seconds that it took.
            cpu_s: processor seconds of the whole process in them.
        """
        if not self.spinning:
            self._left_s -= wall_s
            self.spinning = self._left_s <= 0
            return
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        if self._wall_s >= WINDOW_S:
            self._judge(self._cpu_s / (self._wall_s * self._threads))
            self._wall_s = self._cpu_s = 0.0

    def _judge(self, share: float) -> None:
        if share >= LEAST_SHARE:
            self._calm_s = max(FIRST_CALM_S, self._calm_s / 2)
            return
        self.spinning = False
        self._left_s = self._calm_s
        self._calm_s = min(MOST_CALM_S, 2 * self._calm_s)
