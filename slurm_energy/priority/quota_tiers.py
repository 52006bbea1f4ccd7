"""Effect of quotas on the order of the queue.

Jobs whose user or account has used up much of a quota are ranked last. They form two groups (tiers) behind
the tiers of the scheduling policy:

- Jobs over the warning level of a quota go after all other jobs. The bound on waiting still
  holds for them.
- Jobs over the hold level go last, however long they have waited.

Within each of these two tiers, jobs keep the order of the policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from slurm_energy.priority.quota_levels import QuotaLevel, QuotaStandings, QuotaUse
from slurm_energy.scheduling import Ranking
from slurm_energy.scheduling.ranking import AGED

WARNING_OFFSET: Final = 2
"""Added to the tiers URGENT and NORMAL of jobs over the warning level of a quota, which gives 3 and 4."""
HOLD_OFFSET: Final = 5
"""Added to all tiers of jobs over the hold level of a quota, which gives 5 to 7."""
TIER_NAMES: Final = ("aged", "urgent", "normal", "warned", "warned", "spent", "spent", "spent")
"""Names of the tiers for users; warned: over the warning level of a quota, spent: over the hold level."""


def limiting_quotas(standings: QuotaStandings, who: Sequence[tuple[str, str]]) -> dict[int, QuotaUse]:
    """Return for each job the quota that limits it most.

    The keys of the result are the indices of the jobs in `who`. A quota limits a job if its use exceeds the
    quota's warning level or hold level. A job without such a quota is left out.

    Args:
        standings: use of all quotas.
        who: account and user of each job.
    """
    if not any(use.level for use in standings.uses):
        return {}
    quotas = ((position, standings.limiting(*one)) for position, one in enumerate(who))
    return {position: use for position, use in quotas if use is not None}


def demoted(ranking: Ranking, limiting: Mapping[int, QuotaUse]) -> Ranking:
    """Return a ranking in which jobs that exceed a quota level go after all other jobs.

    A quota has a warning level and a hold level.

    Args:
        ranking: result of the scheduling policy for n jobs.
        limiting: the quota that limits a job, by position of the job. Only jobs over a level of a quota are
            listed.
    """
    if not limiting:
        return ranking
    tier = np.array(ranking.tier, np.int64)
    for position, use in limiting.items():
        if use.level is QuotaLevel.HOLD:
            tier[position] += HOLD_OFFSET
        elif tier[position] != AGED:
            tier[position] += WARNING_OFFSET
    return replace(ranking, tier=tier)
