"""Webhooks of jobs. A row exists from the job's creation until the call was delivered or given up."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select, update

from fractune_server.store.database.database import Repository
from fractune_server.store.database.tables import ENDED, jobs, webhooks


@dataclass(frozen=True)
class Webhook:
    """A call to make."""

    id: str
    job: str
    url: str
    attempts: int
    """number of attempts so far"""


class WebhookStore(Repository):
    def due(self, now: float, most: int) -> list[Webhook]:
        """Webhooks of ended jobs, the longest waiting first."""
        query = select(webhooks.c.id, webhooks.c.job, webhooks.c.url, webhooks.c.attempts)
        query = query.join(jobs, jobs.c.id == webhooks.c.job)
        query = query.where(jobs.c.state.in_(ENDED), webhooks.c.next_at <= now).order_by(webhooks.c.next_at)
        with self._database.read() as connection:
            return [Webhook(*row) for row in connection.execute(query.limit(most))]

    def put_off(self, webhook: Webhook, next_at: float) -> None:
        """Note another attempt; the next one is at `next_at`, in seconds since 1970, or later."""
        values = {"attempts": webhook.attempts + 1, "next_at": next_at}
        with self._database.write() as connection:
            connection.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(values))

    def drop(self, webhook: Webhook) -> None:
        with self._database.write() as connection:
            connection.execute(delete(webhooks).where(webhooks.c.id == webhook.id))
