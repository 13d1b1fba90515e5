"""A container's quota counts, in either version of control groups and in any group around the process."""

import pytest
from tt_spec.container import cpu_quota, within_quota

V2, V1 = "0::/\n", "5:cpuacct,cpu:/\n4:memory:/x\n"
NESTED = "0::/user.slice/job.service\n"


def tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": "rubbish\n"}, None),
        ({"proc/self/cgroup": "rubbish\n::\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
        (
            {
                "proc/self/cgroup": NESTED,
                "sys/fs/cgroup/user.slice/job.service/cpu.max": "max 100000\n",
                "sys/fs/cgroup/user.slice/cpu.max": "400000 100000\n",
            },
            4.0,
        ),
        (
            {
                "proc/self/cgroup": NESTED,
                "sys/fs/cgroup/user.slice/job.service/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/user.slice/cpu.max": "400000 100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": NESTED, "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "5:memory:/\n0::/../..\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1.0),
    ],
)
def test_the_quota_of_the_groups_around_the_process(tmp_path, files, quota):
    assert cpu_quota(tree(tmp_path, files)) == quota


@pytest.mark.parametrize(("text", "cores"), [("max", 8), ("400000", 4), ("350000", 3), ("50000", 1), ("9900000", 8)])
def test_whole_processors_within_the_quota(tmp_path, text, cores):
    files = {"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": f"{text} 100000\n"}
    assert within_quota(8, tree(tmp_path, files)) == cores
