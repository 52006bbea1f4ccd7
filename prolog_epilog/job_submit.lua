-- A job_submit.lua that only checks the energy flags and sets the licenses of power budgets. Slurm reads it beside
-- slurm.conf if slurm.conf contains JobSubmitPlugins=lua. A site with its own job_submit.lua copies the block up to
-- keep_licenses and calls these functions.

-- Without pcall slurmctld would not start if senergy_submit.lua is missing or broken.
package.path = "/usr/local/lib/slurm-energy/?.lua;" .. package.path
local loaded, senergy = pcall(require, "senergy_submit")
if not loaded or type(senergy) ~= "table" then
    local reason = string.match(tostring(senergy), "^[^\n]*")
    slurm.log_error("%s", "job_submit.lua: energy flags are not checked: senergy_submit: " .. reason)
    senergy = nil
end

local function check_energy_flags(job_desc, submit_uid)
    return senergy and senergy.check(job_desc, submit_uid) or slurm.SUCCESS
end

-- Keeps the licenses of power budgets when users change their jobs.
local function keep_licenses(job_desc, job_rec, modify_uid)
    return senergy and senergy.modify and senergy.modify(job_desc, job_rec, modify_uid) or slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    -- The site's own checks go here.
    return check_energy_flags(job_desc, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return keep_licenses(job_desc, job_rec, modify_uid)
end

return slurm.SUCCESS
