"""Seeded bugs of jobs: of the head's desk, of nodes, and of the requests that jobs answer."""

from __future__ import annotations

from tests.sim.world.mutation import Mutant

JOB = ("jobs", "offices")
CROWD = ("held-jobs",)

DESK = (
    Mutant(
        name="jobs_outlive_their_client",
        target="head.jobs:JobDesk.client_gone",
        find="self._forget(job, now)",
        replace="pass",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_are_never_cancelled_at_nodes",
        target="head.jobs:JobDesk._forget",
        find="self._outbox.send(on.link, JobCancel(job=on.number))",
        replace="pass",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_wait_for_a_link_that_is_lost",
        target="head.jobs:JobDesk.link_down",
        find="job.on is None or job.on.link != link",
        replace="True",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_are_never_given_up",
        target="head.jobs:JobDesk._lose",
        find="job.lost += counts",
        replace="pass",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_are_given_up_at_once",
        target="head.jobs:JobDesk._lose",
        find="job.lost += counts",
        replace="job.lost = MAX_STARTS",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_wait_for_no_node",
        target="head.job_waits:JobWaits.until",
        find="return until if may_come and now < until else None",
        replace="return None",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_crowd_a_node",
        target="head.job_room:JobRoom.has",
        find="self.running(node, job.spec.model) < MAX_IN_FLIGHT",
        replace="True",
        also=(("head.job_room:JobRoom.is_none", ">= MAX_IN_FLIGHT", ">= 1 << 30"),),
        profiles=JOB,
    ),
    Mutant(
        name="jobs_that_run_leave_their_place",
        target="head.job_credit:JobCredit.grant",
        find="if on.is_still:",
        replace="if True:",
        profiles=CROWD,
    ),
    Mutant(
        name="jobs_that_went_on_leave_their_place",
        target="head.job_holds:JobHolds.goes_on",
        find="self._on[node, model] -= 1",
        replace="pass",
        profiles=CROWD,
    ),
    Mutant(
        name="jobs_begin_on_drained_nodes",
        target="head.job_kinds:objection",
        find="if view.draining and not spec.of_kind.of_drained:",
        replace="if False:",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_of_an_earlier_link_count",
        target="head.jobs:JobDesk._lose",
        find="self._take_off(job, now)",
        replace="pass",
        also=(("head.jobs:JobDesk._wait_again", "self._take_off(job, now)", "job.on = None"),),
        profiles=JOB,
    ),
    Mutant(
        name="jobs_are_done_after_some_parts",
        target="head.jobs:JobDesk._part",
        find="job.on_part(message.body, now)",
        replace="message.seq == 1 or job.on_part(message.body, now)",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_know_no_slow_reader",
        target="head.job_requests:JobRequest._pump",
        find="held=bool(self._waiting)",
        replace="held=False",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_stay_held",
        target="head.jobs:JobDesk.hold",
        find="job.held = held",
        replace="job.held = job.held or held",
        profiles=JOB,
    ),
    Mutant(
        name="jobs_have_no_budget",
        target="head.jobs:JobDesk._expire",
        find="if job.number in self._jobs:",
        replace="if False:",
        also=(("head.job_requests:JobRequest._expire", "if self.is_over or", "if True or"),),
        profiles=JOB,
    ),
)

REQUESTS = (
    Mutant(
        name="vectors_from_the_start_again",
        target="head.embed_operations:_Embedding._resume",
        find="self._first = self._given",
        replace="self._first = 0",
        profiles=("vectors",),
    ),
    Mutant(
        name="vectors_of_the_last_text_twice",
        target="head.embed_operations:_Embedding._event",
        find="if self._is_known:",
        replace="if False:",
        profiles=("vectors",),
    ),
    Mutant(
        name="windows_from_the_start_again",
        target="head.transcribe_operations:_Windows.resume",
        find="return pack_body(self.body)",
        replace="return body",
        profiles=JOB,
    ),
    Mutant(
        name="windows_in_a_language_heard_anew",
        target="head.transcribe_operations:_Windows.event",
        find="self.body.language or part.language",
        replace="self.body.language",
        profiles=JOB,
    ),
    Mutant(
        name="events_without_credit",
        target="head.job_requests:JobRequest._pump",
        find="while self._waiting and self._credit:",
        replace="while self._waiting:",
        profiles=JOB,
    ),
    Mutant(
        name="end_before_the_last_events",
        target="head.job_requests:JobRequest._pump",
        find="if self._last is not None and not self._waiting and not self.is_over:",
        replace="if self._last is not None and not self.is_over:",
        profiles=JOB,
    ),
    Mutant(
        name="cancelled_jobs_run_on",
        target="head.job_requests:JobRequest._stop",
        find="self._core.runs.jobs.cancel(self._job, now)",
        replace="pass",
        profiles=JOB,
    ),
    Mutant(
        name="requests_of_clients_that_are_gone_stay",
        target="head.job_requests:JobRequests.client_gone",
        find="self._open.pop(client, {}).values()",
        replace="self._open.get(client, {}).values()",
        profiles=JOB,
    ),
)

NODES = (
    Mutant(
        name="nodes_keep_jobs_of_a_lost_link",
        target="bus.agent_jobs:NodeJobs.link_down",
        find="self._drop(job)",
        replace="pass",
        profiles=JOB,
    ),
    Mutant(
        name="workers_go_on_for_nobody",
        target="agent.worker_jobs:WorkerJobs.cancelled",
        find="if job.at_worker:",
        replace="if False:",
        profiles=JOB,
    ),
    Mutant(
        name="dead_workers_keep_their_jobs",
        target="bus.agent_jobs:NodeJobs.worker_gone",
        find="job.refuse(WORKER_LOST, reason)",
        replace="pass",
        profiles=JOB,
    ),
    Mutant(
        name="parts_without_leave",
        target="bus.agent_jobs:NodeJobs.pump",
        find="job.sent < job.allowed",
        replace="True",
        profiles=JOB,
    ),
    Mutant(
        name="parts_in_a_wrong_order",
        target="bus.agent_jobs:NodeJobs._take",
        find="job.ready.popleft()",
        replace="job.ready.pop()",
        profiles=JOB,
    ),
)

FETCHES = (
    Mutant(
        name="tokenizers_are_fetched_each_time",
        target="head.tokenizers:TokenizerDesk._start",
        find="if fetch.key in self._store.kept():",
        replace="if False:",
        profiles=JOB,
    ),
)

JOBS = DESK + REQUESTS + NODES + FETCHES
