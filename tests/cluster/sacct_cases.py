"""Combinations of options with which sacct and `senergy acct` must print the same rows.

The combinations contain only columns that both commands have. `{name}` is the id of a job of `varied_jobs`.
"""

from __future__ import annotations

ID = "-o jobid%15,jobidraw,state%20,start,end"
TIMES = "-o jobid,submit,eligible,start,end,elapsed,elapsedraw"

CASES = (
    # users, accounts, groups, clusters
    f"{ID}",
    f"-a {ID}",
    f"-u nobody {ID}",
    f"-u root,nobody -X {ID}",
    f"--uid 65534 {ID}",
    f"-A lab {ID}",
    "-A root,lab -o account,user,uid,group,gid,jobid",
    f"-g root {ID}",
    f"-g 0,65534 -X {ID}",
    "-M lab -X -o cluster,jobid",
    "-L -X -o cluster,jobid,state",
    "--local -X -o jobid",
    "--federation -X -o jobid",
    f"-x 1,2,3,4,5 -X {ID}",
    "--use-local-uid -X -o jobid,uid,user",
    # jobs, steps, arrays, heterogeneous jobs
    f"-j {{plain}} {ID}",
    f"-j {{plain}}.0 {ID}",
    f"-j {{plain}}.batch,{{two}} {ID}",
    f"-j {{array}} {ID}",
    f"-j {{array}}_1,{{array}}_3 {ID}",
    f"-j {{array}}_0,{{array}}_1,{{array}}_2 -X {ID}",
    f"-j {{het}} {ID}",
    f"-j {{het}}+1 {ID}",
    f"-j {{het}}+1 --whole-hetjob {ID}",
    f"-j {{het}} --whole-hetjob=no {ID}",
    f"-j {{requeued}} {ID}",
    f"-j {{requeued}} -D {ID}",
    f"-D -X {ID}",
    f"-j {{held}},{{dropped}},{{begin}} {ID}",
    "-j {begin} -o jobid%-30,jobname,state",
    # states and times
    f"-s CD -S now-1hour -E now {ID}",
    f"-s failed,cancelled -S now-1hour -E now {ID}",
    f"-s F,CA,RQ -S now-1hour -E now -D {ID}",
    f"-s R {ID}",
    f"-s PD -E now+2hours {ID}",
    f"--state=completed -S 00:00 -X {ID}",
    f"-S now-1hour -E now+1minute {TIMES}",
    f"-S now-10seconds -T -X {TIMES}",
    f"-S 2020-01-01 -E 2020-01-02 {ID}",
    f"-j {{plain}},{{running}} -S now-1hour -T {TIMES}",
    # nodes, sizes, limits
    f"-N n1 {ID}",
    f"-N n[1-2] -X {ID}",
    f"-i 2 -X {ID}",
    f"-i 1-2 -X {ID}",
    f"-I 1-2 -X {ID}",
    f"-I 4-8 {ID}",
    f"-k 5 -X {ID}",
    f"-k 1 -K 30 -X {ID}",
    # partitions, names, QOS, keys, reasons, flags, constraints
    f"-r all -X {ID}",
    f"--name plain,two {ID}",
    "--name array -X -o jobname%-7,jobid",
    f"-q normal -X {ID}",
    f"-W key {ID}",
    f"--reason Dependency {ID}",
    f"-F SchedMain,SchedSubmit -X {ID}",
    f"-C nosuch {ID}",
    # output
    f"-n -P {ID}",
    f"-p -X {ID}",
    f"-P --delimiter=; {ID}",
    "--name plain,failed,array -o jobid%4,jobname%3,state%5,start%10,end%-25,elapsed%4,nnodes%2,alloccpus%1",
    "-X --name plain,two -P -o jobname,submitline%10,comment,account,partition,qos,reqtres,alloctres",
    "--noconvert -X -o jobid,reqmem,reqcpus,alloccpus,ncpus,allocnodes,nnodes,nodelist",
    "--units=M -X -o jobid,reqmem,maxrss",
    "-X --name plain -o reserv,part,jobidr,st,elapsedr,time,prio,ti",
    "--name plain -P -o ntasks,layout,avecpu,maxrss,totalcpu,usercpu,systemcpu,exitcode,derivedexitcode",
    "-X --name failed,signal -o jobid,exitcode,state,derivedexitcode,reason,flags,dbindex,associd,workdir%5",
)
