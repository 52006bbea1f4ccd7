"""Test cases for which `sreport` and `senergy report` must print the same report.

A case consists of words and options. Both commands run with each case over the same jobs. The option
`start=` is set to the hour in which the jobs ran. The option -T cpu omits the columns of energy, because the
energies of the two commands differ by design.
"""

from __future__ import annotations

CASES = (
    "cluster AccountUtilizationByUser -T cpu",
    "cluster AccountUtilizationByUser tree -T cpu -t Seconds",
    "cluster AccountUtilizationByUser accounts=phys -T cpu -t Hours",
    "cluster AccountUtilizationByUser users=mail,games format=Cl,Login,Ac%20,Proper,Used -t Sec",
    "cluster A -p -T cpu -t Seconds",
    "cluster UserUtilizationByAccount -T cpu -t Seconds",
    "cluster UserUtilizationByAccount format=Login,Used,Accounts%-12 -t Minutes -P",
    "cluster UA -n -s Name -T cpu",
    "user TopUsage -T cpu -t Seconds",
    "user TopUsage topcount=2 group -P -T cpu",
    "user Top users=games -t Seconds format=L%12,P,A,U",
    "job SizesByAccount -T cpu -t Seconds",
    "job SizesByAccount -T cpu flatview grouping=2,4 -t Minutes",
    "job SizesByAccount -T cpu accounts=phys,lab grouping=individual -P -t Seconds",
    "job SizesByAccount -T cpu acctasparent printjobcount",
    "job Sizes -T cpu flatview users=mail -t SecPer",
    "job SizesByAccount -T cpu grouping=1,2,3,4 -t Seconds",
    "job SizesByAccount flatview printjobcount",
)
