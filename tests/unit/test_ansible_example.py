"""Tests of the example playbooks for Ansible: the order of the hosts, and records that wait for delivery.

The tests read the playbooks. They do not need Ansible.
"""

from pathlib import Path

import yaml

EXAMPLE = Path(__file__).parents[2] / "examples/ansible"


def read(path):
    return yaml.safe_load((EXAMPLE / path).read_text())


def module_of(task, name):
    return task.get(f"ansible.builtin.{name}")


def command_positions(tasks):
    return {
        " ".join(arguments["argv"][:3]): index
        for index, task in enumerate(tasks)
        if (arguments := module_of(task, "command"))
    }


def test_controllers_are_installed_first_and_removed_last():
    hosts = [play["hosts"] for play in read("site.yml") if "roles" in play]
    assert hosts == ["slurm_controllers", "slurm_nodes", "slurm_login"]
    plays = read("remove.yml")
    assert [play["hosts"] for play in plays] == [
        "slurm_login:!slurm_controllers",
        "slurm_nodes:!slurm_controllers",
        "slurm_controllers",
    ]
    assert {play["roles"][0]["slurm_energy_state"] for play in plays} == {"absent"}
    assert module_of(plays[-1]["pre_tasks"][0], "assert")


def test_the_playbook_that_installs_refuses_to_remove():
    first = read("site.yml")[0]
    assert first["hosts"] == "all"
    assert "slurm_energy_state" in module_of(first["tasks"][0], "assert")["that"]


def test_the_messages_of_apt_are_read_in_english():
    """In another language, each run would report a change."""
    tasks = read("roles/slurm_energy/tasks/present.yml")
    apt = next(task for task in tasks if "apt-get" in str(module_of(task, "command")))
    assert "0 newly installed" in apt["changed_when"] and apt["environment"]["LC_ALL"] == "C"


def test_records_are_delivered_before_the_undo_and_kept_by_default():
    tasks = read("roles/slurm_energy/tasks/absent.yml")
    positions = command_positions(tasks)
    packages = next(index for index, task in enumerate(tasks) if module_of(task, "apt"))
    assert positions["senergy spool --json"] < positions["senergy setup undo"] < packages
    assert "retries" in tasks[positions["senergy spool --json"]]
    assert module_of(tasks[packages], "apt")["purge"] == "{{ slurm_energy_purge | bool }}"
    assert read("roles/slurm_energy/defaults/main.yml")["slurm_energy_purge"] is False


def test_packages_are_removed_only_after_a_complete_undo():
    tasks = read("roles/slurm_energy/tasks/absent.yml")
    undo = command_positions(tasks)["senergy setup undo"]
    packages = next(index for index, task in enumerate(tasks) if module_of(task, "apt"))
    checks = [module_of(task, "assert") for task in tasks[undo:packages]]
    assert [check["that"] for check in checks if check] == ["slurm_energy_undo.rc | default(0) == 0"]


def test_steps_left_to_the_administrator_are_shown():
    for name, number in (("present", -2), ("absent", None)):
        tasks = read(f"roles/slurm_energy/tasks/{name}.yml")
        number = command_positions(tasks)["senergy setup undo"] if number is None else number
        assert tasks[number]["failed_when"].endswith(".rc not in [0, 1]")
        assert "slurm_energy_todo" in module_of(tasks[number + 1], "debug")["msg"]
