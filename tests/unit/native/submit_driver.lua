-- Test driver of senergy_submit.lua. Its arguments are the module's folder and the policy file. It reads name,
-- user and value from stdin, each terminated by NUL, and writes a line per request: `ok` or `refused`, TAB,
-- message, TAB, log.
package.path = arg[1] .. "/?.lua"
local said, logged
slurm = {
    SUCCESS = 0,
    ERROR = -1,
    log_user = function(...) said = string.format(...) end,
    log_error = function(...) logged = string.format(...) end,
}
local senergy = require("senergy_submit")
senergy.policy_file = arg[2]
local fields = {}
for field in string.gmatch(io.read("*a"), "([^%z]*)%z") do
    fields[#fields + 1] = field
end
for i = 1, #fields, 3 do
    said, logged = "", ""
    local job = {
        user_id = 1000,
        user_name = fields[i + 1],
        spank_job_env = { [0] = "OTHER=1", [1] = fields[i] .. "=" .. fields[i + 2] },
    }
    local code = senergy.check(job, 1000)
    print((code == 0 and "ok" or "refused") .. "\t" .. said .. "\t" .. logged)
end
