"""QoS classes: 0 interactive, 1 completion, 2 agent, 3 background. The head's queue and the worker
rank by the same rules, so that a request keeps its rank on its way."""

from __future__ import annotations

#: Seconds of waiting after which a request of class 0 to 3 counts as one of class 0.
AGE_S = (0.0, 5.0, 20.0, 60.0)
LOWEST_CLASS = 3
#: Classes up to this one may take a lane from a running generation of a lower class.
MAY_PREEMPT = 1
