-- A job_submit.lua that does nothing but check the energy flags. A site with its own adds the first two
-- statements and the call of senergy.check. In slurm.conf: JobSubmitPlugins=lua; this file lies beside it.

package.path = "/usr/local/lib/slurm-energy/?.lua;" .. package.path
local senergy = require("senergy_submit")

function slurm_job_submit(job_desc, part_list, submit_uid)
    return senergy.check(job_desc, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
