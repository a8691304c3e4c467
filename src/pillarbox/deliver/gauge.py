"""Measures a worker: utilisation and pool use for the metrics, and a warning near saturation."""

from __future__ import annotations

from pillarbox.deliver.provider_pool import ProviderPool
from pillarbox.deliver.worker import Worker
from pillarbox.store.database import Database
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.gauge")
# Weight of the newest reading: at one a second the average covers about a minute, so that a short
# burst causes no warning.
NEWEST = 1 / 60


class Gauge:
    """Reads a worker and its pools once per `read`."""

    def __init__(
        self, worker: Worker, pool: ProviderPool, database: Database, metrics: Metrics, alert: float
    ) -> None:
        self._worker = worker
        self._pool = pool
        self._database = database
        self._metrics = metrics
        self._alert = alert
        self._average = 0.0
        self._alerted = False

    async def read(self) -> float:
        """Take one reading; returns the average utilisation."""
        now = self._worker.utilisation
        self._average += (now - self._average) * NEWEST
        self._metrics.utilisation.set(self._average)
        self._metrics.in_flight.set(self._worker.in_flight)
        self._metrics.window.set(self._worker.window)
        self._read_pools()
        self._warn()
        return self._average

    def _read_pools(self) -> None:
        self._metrics.store_pool(*self._database.pool_use)
        for channel in self._pool.channels:
            transport = channel.transport
            self._metrics.pool(
                channel.provider.name, transport.connections_open, transport.connections_busy
            )

    def _warn(self) -> None:
        """Log once when the average exceeds the limit, and once when it is well below again."""
        if self._average > self._alert and not self._alerted:
            self._alerted = True
            log.warning(
                "workers are nearly saturated; add one", utilisation=round(self._average, 2)
            )
        elif self._average < self._alert * 0.9 and self._alerted:
            self._alerted = False
            log.info("workers have room again", utilisation=round(self._average, 2))
