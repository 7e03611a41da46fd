//! How much memory the process may have.
#![expect(clippy::disallowed_methods, reason = "part of the seam to std::fs")]

use std::path::Path;

/// What the machine has, or less where a control group has a limit, be it the process's own or one around it.
pub(super) fn bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = machine.totalram.saturating_mul(u64::from(machine.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = lowest_limit(&groups, |file| std::fs::read_to_string(file).ok());
    limit.map_or(machine, |limit| limit.min(machine))
}

/// The lowest limit of all groups in `groups`, lines of `number:controllers:path`. The second version's line has no controllers. In a container the
/// path may be one of the host, of which only the root can be seen: that is the container's group.
fn lowest_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let around = Path::new(group.trim_start_matches('/')).ancestors();
        // No limit is a word, "max", or more than any machine has.
        around.filter_map(|group| read(&Path::new(root).join(group).join(file))?.trim().parse().ok()).min()
    };
    groups.lines().filter_map(of_line).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let find = |file: &Path| files.iter().find(|(name, _)| Path::new(name) == file);
        lowest_limit(groups, |file| find(file).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_lowest_limit_of_the_groups_around_counts() {
        let second = "0::/user/app\n";
        assert_eq!(limit(second, &[("/sys/fs/cgroup/user/app/memory.max", "max\n")]), None);
        let files = [
            ("/sys/fs/cgroup/user/app/memory.max", "500\n"),
            ("/sys/fs/cgroup/user/memory.max", "400\n"),
            ("/sys/fs/cgroup/memory/user/app/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(limit(second, &files), Some(400));
        let first = "5:cpu,cpuacct:/\n4:hugetlb,memory:/user/app\n";
        let files = [
            ("/sys/fs/cgroup/memory/user/app/memory.limit_in_bytes", "402653184\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/memory.max", "1\n"),
        ];
        assert_eq!(limit(first, &files), Some(384 << 20));
    }

    #[test]
    fn of_a_group_of_the_host_a_container_sees_the_root() {
        let files = [("/sys/fs/cgroup/memory.max", "1000\n")];
        assert_eq!(limit("0::/system.slice/docker-abc.scope\n", &files), Some(1000));
        assert_eq!(limit("0::/\n", &files), Some(1000));
        assert_eq!(limit("", &files), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(bytes() > 1 << 20);
    }
}
