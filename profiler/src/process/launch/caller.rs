//! The user who called sudo: a command under test is theirs, not root's.

use std::{env, fs, process::Command};

use rustix::{
    process::{Gid, Uid},
    thread,
};

/// Variables that tell of sudo. The command does not run under it.
const SUDO_VARIABLES: [&str; 5] = [
    "SUDO_UID",
    "SUDO_GID",
    "SUDO_USER",
    "SUDO_COMMAND",
    "MAIL", // root's
];

/// Who called sudo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    uid: u32,
    gid: u32,
    /// All groups, `gid` included.
    groups: Vec<u32>,
    account: Option<Account>,
}

/// A line of /etc/passwd.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    name: String,
    home: String,
    shell: String,
}

/// User and group id of who called sudo; `None` unless we are root by sudo, called by somebody who is not.
pub fn sudo_caller() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |name| env::var(name).ok()?.parse::<u32>().ok();
    let (uid, gid) = (id("SUDO_UID")?, id("SUDO_GID")?);
    // All ones means "leave it" to the kernel.
    (uid != 0 && uid != u32::MAX && gid != u32::MAX).then_some((uid, gid))
}

impl Caller {
    /// `None` when not under sudo.
    pub fn of_sudo() -> Option<Self> {
        let (uid, gid) = sudo_caller()?;
        let account = account_of(&fs::read_to_string("/etc/passwd").unwrap_or_default(), uid);
        let name = account
            .as_ref()
            .map(|account| account.name.clone())
            .or_else(|| env::var("SUDO_USER").ok());
        let mut groups = name.map_or_else(Vec::new, |name| {
            groups_of(&fs::read_to_string("/etc/group").unwrap_or_default(), &name)
        });
        if !groups.contains(&gid) {
            groups.push(gid);
        }
        Some(Self {
            uid,
            gid,
            groups,
            account,
        })
    }

    /// Sets the variables a login would set.
    pub(super) fn describe_in(&self, command: &mut Command) {
        for name in SUDO_VARIABLES {
            command.env_remove(name);
        }
        if let Some(Account { name, home, shell }) = &self.account {
            command
                .env("USER", name)
                .env("LOGNAME", name)
                .env("HOME", home)
                .env("SHELL", shell);
        }
    }

    /// User and group id.
    pub const fn ids(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// Has the calling thread, and no other, use files with the rights of that user. It stays root's: its real user id
    /// is what the kernel compares when that user wants to send it a signal or look into it (`kill_ok_by_cred` in
    /// kernel/signal.c, `__ptrace_may_access` in kernel/ptrace.c, Linux 6.12), and its memory is ours.
    pub fn use_files_as_it(&self) -> rustix::io::Result<()> {
        thread::set_thread_groups(&self.group_ids())?;
        thread::set_thread_res_gid(None, Gid::from_raw(self.gid), None)?;
        thread::set_thread_res_uid(None, Uid::from_raw(self.uid), None)
    }

    /// Becomes that user, for good. The process must have one thread: the kernel changes threads, not processes.
    pub(super) fn become_it(&self) -> rustix::io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        thread::set_thread_groups(&self.group_ids())?;
        thread::set_thread_res_gid(gid, gid, gid)?;
        thread::set_thread_res_uid(uid, uid, uid)
    }

    fn group_ids(&self) -> Vec<Gid> {
        self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect()
    }
}

/// The account with this user id: `name:password:uid:gid:comment:home:shell`.
fn account_of(passwd: &str, uid: u32) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, id, _, _, home, shell] = fields.as_slice() else {
            return None;
        };
        (id.parse() == Ok(uid)).then(|| Account {
            name: (*name).to_owned(),
            home: (*home).to_owned(),
            shell: (*shell).to_owned(),
        })
    })
}

/// The groups that list this user: `name:password:gid:user,user`.
fn groups_of(group: &str, user: &str) -> Vec<u32> {
    group
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            let (gid, members) = (fields.next()?, fields.next()?);
            members
                .split(',')
                .any(|member| member == user)
                .then_some(gid)
        })
        .filter_map(|gid| gid.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken line\nada:x:1000:1000:Ada,,,:/home/ada:/bin/zsh\n";
        let ada = account_of(passwd, 1000).unwrap();
        assert_eq!(
            (&*ada.name, &*ada.home, &*ada.shell),
            ("ada", "/home/ada", "/bin/zsh")
        );
        assert_eq!(account_of(passwd, 1001), None);
    }

    #[test]
    fn groups_are_those_that_list_the_user() {
        let group = "root:x:0:\nadm:x:4:syslog,ada\naudio:x:29:adam\ndocker:x:998:ada\n";
        assert_eq!(groups_of(group, "ada"), [4, 998]);
        assert_eq!(groups_of(group, "nobody"), [0_u32; 0]);
    }
}
