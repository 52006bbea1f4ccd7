"""Edit of job_submit.lua: a guarded block that calls slurm-energy after the site's own functions.

All functions are pure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.setup.conf_text import line_break
from slurm_energy.setup.hunk import NOTE, Hunk
from slurm_energy.setup.lua_tokens import LUA_KEYWORDS, LuaSyntaxError, LuaToken, lua_tokens

_FUNCTIONS: Final = ("slurm_job_submit", "slurm_job_modify")
CHECK_MODULE: Final = "senergy_submit"

_BLOCK: Final = """\
-- {note}: begin. Checks energy flags after the functions above. `senergy setup undo` removes this block.
do
    package.path = "{library}/?.lua;" .. package.path
    local loaded, senergy = pcall(require, "{module}")
    if loaded and type(senergy) == "table" then
        local function checked(check, site_code, ...)
            if site_code ~= nil and site_code ~= slurm.SUCCESS then
                return site_code
            end
            local ran, code = pcall(check, ...)
            if not ran then
                slurm.log_error("%s", "job_submit.lua: energy flags are not checked: " .. tostring(code))
            elseif code ~= nil and code ~= slurm.SUCCESS then
                return code
            end
            return site_code
        end
        local site_submit, site_modify = slurm_job_submit, slurm_job_modify
        if type(site_submit) == "function" and senergy.check then
            function slurm_job_submit(job_desc, part_list, submit_uid, ...)
                local code = site_submit(job_desc, part_list, submit_uid, ...)
                return checked(senergy.check, code, job_desc, submit_uid)
            end
        end
        if type(site_modify) == "function" and senergy.modify then
            function slurm_job_modify(job_desc, job_rec, part_list, modify_uid, ...)
                local code = site_modify(job_desc, job_rec, part_list, modify_uid, ...)
                return checked(senergy.modify, code, job_desc, job_rec, modify_uid)
            end
        end
    else
        slurm.log_error("%s", "job_submit.lua: energy flags are not checked: " .. tostring(senergy))
    end
end
-- {note}: end
"""


def add_check(text: str, library: Path, script: Path) -> Hunk | None:
    """Return the change that makes a job_submit script check the energy flags.

    None means that the script already has the check. The change inserts lines before the `return` statement
    at the end of the script.

    Args:
        text: text of the script.
        library: directory of senergy_submit.lua.
        script: path of the script, for the error message.

    Raises:
        UnavailableError: the script cannot be changed safely.
    """
    try:
        tokens = list(lua_tokens(text))
    except LuaSyntaxError as error:
        raise _refusal(script, str(error), library) from None
    if any(CHECK_MODULE in token.text for token in tokens):
        return None
    if local := _local_function(tokens):
        raise _refusal(script, f"{local} is a local name", library)
    returns = [token for token in tokens if token.is_name and token.text == "return" and token.depth == 0]
    end = line_break(text)
    block = _BLOCK.format(note=NOTE, library=_quoted(library), module=CHECK_MODULE).replace("\n", end)
    if not returns:
        joined = bool(text) and not text.endswith("\n")
        return Hunk(len(text), "", block, joined)
    at = text.rfind("\n", 0, returns[-1].start) + 1
    if text[at : returns[-1].start].strip():
        raise _refusal(script, "the last `return` does not begin a line", library)
    return Hunk(at, "", block)


def new_script(library: Path) -> str:
    """Return the text of a job_submit.lua for a site without one.

    Args:
        library: directory of senergy_submit.lua.
    """
    head = f"-- {NOTE}: this script only checks energy flags; add the checks of the site to its functions.\n"
    arguments = ("job_desc, part_list, submit_uid", "job_desc, job_rec, part_list, modify_uid")
    functions = "".join(
        f"function {name}({names})\n    return slurm.SUCCESS\nend\n\n"
        for name, names in zip(_FUNCTIONS, arguments, strict=True)
    )
    block = _BLOCK.format(note=NOTE, library=_quoted(library), module=CHECK_MODULE)
    return f"{head}\n{functions}{block}\nreturn slurm.SUCCESS\n"


def _local_function(tokens: list[LuaToken]) -> str:
    """Return the name of a Slurm function that a Lua script declares as a local name.

    The result is an empty text if there is none.
    """
    for number, token in enumerate(tokens):
        if token.text != "local" or not token.is_name or token.depth:
            continue
        names = tokens[number + 1 :]
        if names and names[0].text == "function":
            names = names[1:2]
        for one in names:
            if one.text in _FUNCTIONS:
                return one.text
            if not (one.is_name or one.text in ",<>") or one.text in LUA_KEYWORDS:
                break
    return ""


def _quoted(path: Path) -> str:
    """Return a path in the form for a Lua string in double quotes."""
    return str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _refusal(script: Path, why: str, library: Path) -> UnavailableError:
    todo = f"copy the block up to keep_licenses from {library}/job_submit.lua and call the two functions"
    return UnavailableError(str(script), f"cannot be changed safely: {why}", todo)
