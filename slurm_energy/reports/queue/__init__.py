"""Text about the queue: `senergy prio`, `senergy share`, quotas and deferred jobs."""
