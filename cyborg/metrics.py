# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: what is counted, and the HTTP endpoint that shows it.

Everything is counted, with or without an endpoint; that takes microseconds. No label has a uuid or
the name of a host as its value, so the number of time series is bounded.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeGuard
from wsgiref.types import StartResponse, WSGIEnvironment

import prometheus_client
from oslo_config import cfg
from prometheus_client import multiprocess, registry

from cyborg.common import host_header

LOG = logging.getLogger(__name__)

#: The metrics of this process, apart from what libraries count in prometheus_client's registry.
REGISTRY = prometheus_client.CollectorRegistry()

_Metric = prometheus_client.Counter | prometheus_client.Histogram

#: Names the folder in which the processes of a WSGI server count together; prometheus_client
#: reads it too.
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

# The time at which each count began adds nothing to the start time of the process.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

#: Buckets in seconds: for requests, and for what waits for a host.
_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

#: Seconds after which an endpoint tries again if its port is in use.
_PORT_RETRY = 5.0
_STOP_GRACE = 2.0

#: The addresses of a driver's devices with a reading, by the driver, then by the name of the
#: reading.
_SHOWN: dict[str, dict[str, frozenset[str]]] = {}


def _histogram(
    name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SHORT
) -> prometheus_client.Histogram:
    return prometheus_client.Histogram(name, text, labels, registry=REGISTRY, buckets=buckets)


def _counter(name: str, text: str, *labels: str) -> prometheus_client.Counter:
    return prometheus_client.Counter(name, text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> prometheus_client.Gauge:
    return prometheus_client.Gauge(
        name, text, labels, registry=REGISTRY, multiprocess_mode="mostrecent"
    )


API_REQUESTS = _counter(
    "cyborg_api_requests", "Requests answered.", "method", "route", "status"
)
API_SECONDS = _histogram(
    "cyborg_api_request_duration_seconds", "Time until the answer.", "method", "route"
)
BIND_SECONDS = _histogram(
    "cyborg_bind_duration_seconds",
    "Time from the request to bind an ARQ until it was bound or has failed.",
    "outcome",
    buckets=_LONG,
)
#: Whether it was bound or has failed.
BIND_OUTCOMES = ("failed", "bound")
WORK_SECONDS = _histogram(
    "cyborg_work_duration_seconds", "Time an attempt at a piece of work took.", "kind", "outcome"
)
REPORT_SECONDS = _histogram(
    "cyborg_report_duration_seconds", "Time it took to take in a host's report.", "outcome"
)
MESSAGES_REFUSED = _counter(
    "cyborg_messages_refused",
    "Messages between services that were refused for their signature, or cannot be read.",
    "method",
    "reason",
)
CLIENT_SECONDS = _histogram(
    "cyborg_client_request_duration_seconds",
    "Time another service took to answer.",
    "service",
    "method",
    "status",
)
HOST_STEP_SECONDS = _histogram(
    "cyborg_host_step_duration_seconds",
    "Time a conductor waited for an attempt of a step on a host.",
    "action",
    "outcome",
    buckets=_LONG,
)
NOTIFICATIONS_SENT = _counter(
    "cyborg_notifications_sent", "Notifications the message broker has taken.", "event_type"
)
PASS_SECONDS = _histogram(
    "cyborg_agent_pass_duration_seconds", "Time of a discovery pass.", "outcome", buckets=_LONG
)
DRIVER_SECONDS = _histogram(
    "cyborg_agent_driver_duration_seconds",
    "Time a driver took for a discovery.",
    "driver",
    "outcome",
    buckets=_LONG,
)
DRIVER_DEVICES = _gauge(
    "cyborg_agent_driver_devices", "Devices a driver has found in the last pass.", "driver"
)
DRIVER_FAILING = _gauge(
    "cyborg_agent_driver_failing", "1 if a driver failed in the last pass, else 0.", "driver"
)
DRIVER_STEP_SECONDS = _histogram(
    "cyborg_agent_step_duration_seconds",
    "Time a driver took for a step on an attach handle.",
    "driver",
    "action",
    "outcome",
    buckets=_LONG,
)
#: By what a driver reads.
DEVICE_READINGS = {
    name: _gauge(f"cyborg_agent_device_{name}", text, "driver", "address")
    for name, text in {
        "temperature_celsius": "The highest temperature that a device shows.",
        "power_watts": "The power that a device takes.",
        "memory_used_bytes": "Memory of a device that is in use.",
        "ecc_correctable_errors": "Errors that a device has corrected since its driver began.",
        "ecc_uncorrectable_errors": "Errors that a device could not correct since then.",
    }.items()
}
#: The most devices of one driver, and in the report of a host, whose readings are shown.
READINGS_MAX = 128
#: Readings by their names, by the places of the devices.
Readings = Mapping[str, Mapping[str, float]]
#: Characters of a place, and the largest reading.
_PLACE_MAX, _READING_MAX = 255, 2.0**63
AGENT_LAST = _gauge(
    "cyborg_agent_last_timestamp_seconds",
    "When an agent last made a pass, or a conductor took in its report, since the epoch.",
    "event",
)


@contextlib.contextmanager
def observed(
    histogram: prometheus_client.Histogram, **labels: str
) -> Iterator[dict[str, str]]:
    """Observe how long the block takes, even if it raises.

    The block gets the labels and may change them; pass those for a failure.
    """
    started = time.perf_counter()
    try:
        yield labels
    finally:
        count(histogram, time.perf_counter() - started, **labels)


def count(metric: _Metric, seconds: float | None = None, /, **labels: str) -> None:
    """Count one, or observe so many seconds. Where that cannot be written, all goes on without."""
    try:
        child: Any = _child(metric, tuple(labels.items()))
        if seconds is None:
            child.inc()
        else:
            child.observe(seconds)
    except OSError as exc:
        _say_once(str(exc))


def begin_at_zero(histogram: prometheus_client.Histogram, *outcomes: str) -> None:
    """Show these outcomes before there are any: Prometheus sees no increase from none to 1."""
    for outcome in outcomes:
        with contextlib.suppress(OSError):
            _child(histogram, (("outcome", outcome),))


@functools.lru_cache(maxsize=1024)
def _child(metric: _Metric, labels: tuple[tuple[str, str], ...]) -> _Metric:
    """The counter with these labels: to look it up takes longer than to count."""
    return metric.labels(**dict(labels))


@functools.lru_cache(maxsize=16)
def _say_once(why: str) -> None:
    LOG.warning("Metrics cannot be counted in the folder of %s: %s", MULTIPROCESS, why)


def may_be_read(conf: cfg.ConfigOpts) -> bool:
    """True if somebody may look at the readings of sensors; without that nothing is read."""
    return conf.metrics.port is not None or bool(conf.agent.report_readings)


def known_readings(said: Mapping[Any, Any]) -> dict[str, dict[str, float]]:
    """The readings that a driver or a host may have; whatever else it says is left out."""
    found: dict[str, dict[str, float]] = {}
    for place, values in itertools.islice(said.items(), READINGS_MAX):
        if isinstance(values, Mapping) and _is_place(place):
            known = {name: values.get(name) for name in DEVICE_READINGS}
            if read := {name: value for name, value in known.items() if _is_reading(value)}:
                found[place] = read
    return found


def _is_place(place: object) -> bool:
    is_short = isinstance(place, str) and len(place) <= _PLACE_MAX
    return is_short and str(place).isascii() and str(place).isprintable()


def _is_reading(value: object) -> TypeGuard[float]:
    """True for a number that JSON has, too: it has neither NaN nor infinity."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -_READING_MAX <= value <= _READING_MAX


def devices_read(driver: str, readings: Readings) -> None:
    """Show what a driver has read of its devices, by their addresses, and nothing else of it."""
    before, shown = _SHOWN.pop(driver, {}), known_readings(readings)
    if not shown and not before:
        return
    for name, gauge in DEVICE_READINGS.items():
        found = {place: values[name] for place, values in shown.items() if name in values}
        for place in before.get(name, frozenset()) - found.keys():
            gauge.remove(driver, place)
        for place, value in found.items():
            gauge.labels(driver, place).set(value)
        if found:
            _SHOWN.setdefault(driver, {})[name] = frozenset(found)


def pass_ended(devices: Mapping[str, Collection[object]], failing: Collection[str]) -> None:
    """Set the gauges of a discovery pass: what each driver has found, and which have failed."""
    for driver, found in devices.items():
        DRIVER_DEVICES.labels(driver).set(len(found))
    for driver in {*devices, *failing}:
        DRIVER_FAILING.labels(driver).set(driver in failing)
    AGENT_LAST.labels("pass").set_to_current_time()


def bind_ended(*, bound: bool, started_ms: int | None, now_ms: float) -> None:
    """Observe a bind that was requested at ``started_ms`` and ended at ``now_ms``."""
    seconds = (now_ms - (started_ms or now_ms)) / 1000
    count(BIND_SECONDS, seconds, outcome=BIND_OUTCOMES[bound])


def status_class(status: int) -> str:
    """``2xx`` and the like: the label for an HTTP status."""
    return f"{status // 100}xx"


def endpoints(conf: cfg.ConfigOpts, *collectors: registry.Collector) -> list[MetricsEndpoint]:
    """The endpoint of ``[metrics]``, if one is set; ``collectors`` are read at each request."""
    if conf.metrics.port is None:
        return []
    shown = _shown()
    for collector in collectors:
        shown.register(collector)
    return [MetricsEndpoint(conf, shown)]


def _shown() -> prometheus_client.CollectorRegistry:
    """A registry with the counts of this process, or of all processes of its WSGI server."""
    shown = prometheus_client.CollectorRegistry()
    if MULTIPROCESS in os.environ:
        try:
            multiprocess.MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
        except ValueError as exc:
            _say_once(str(exc))
    else:
        shown.register(REGISTRY)
        prometheus_client.ProcessCollector(registry=shown)
        prometheus_client.PlatformCollector(registry=shown)
    return shown


class MetricsEndpoint:
    """Answers ``GET /metrics`` in a thread.

    Metrics never stop a process: while the port is in use, the endpoint tries again. Of the
    processes of one WSGI server the first gets the port, and another one when that has ended.
    """

    def __init__(self, conf: cfg.ConfigOpts, shown: prometheus_client.CollectorRegistry) -> None:
        self._host, self._port = str(conf.metrics.host), conf.metrics.port
        self._names = (conf.host, self._host, *conf.metrics.names)
        self._show = prometheus_client.make_wsgi_app(shown)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin to answer as soon as the port is free. Return at once."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._stopping.set()
        self._thread.join(_STOP_GRACE)

    def _run(self) -> None:
        warned = False
        while not self._stopping.is_set():
            try:
                # Until it has its application, it has nothing to show.
                nothing = prometheus_client.CollectorRegistry()
                server, _ = prometheus_client.start_http_server(self._port, self._host, nothing)
                server.set_app(self._answer)
            except OSError as exc:
                if not warned:
                    LOG.warning(
                        "Cannot show metrics on %s port %d yet: %s", self._host, self._port, exc
                    )
                warned = True
                self._stopping.wait(_PORT_RETRY)
            else:
                LOG.info("Showing metrics on %s port %d", self._host, self._port)
                self._stopping.wait()
                server.shutdown()
                server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """The metrics, unless a name that is not this machine's has led here."""
        if host_header.is_own(environ.get("HTTP_HOST", ""), *self._names):
            shown: Iterable[bytes] = self._show(environ, start_response)
            return shown
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"The Host of the request is not a name of this machine; see [metrics] names.\n"]
