//! `steelyard sidecar`: capture of an application's connections, and the process that serves them.
//!
//! What is captured is in [`l4::capture`], and how it is served in the proxy plane. This module connects them with the configuration file.

mod inject;
mod manifest;
mod pod;
#[cfg(feature = "controller")]
mod webhook;

use model::{CaptureListener, Generation, Protocol, Snapshot};

use crate::cli::{SidecarCommand, SidecarInitArgs};
use crate::exit::Exit;
use crate::{files, run};

/// Runs a command.
pub(crate) fn sidecar(command: SidecarCommand) -> Exit {
    match command {
        SidecarCommand::Run(args) => match files::load(&args.file.config, Generation(1)) {
            Ok(file) if gate(&file.snapshot).is_none() => {
                eprintln!("steelyard: {}", has_none(&args.file.config));
                Exit::BadConfig
            }
            // What is wrong with the file is reported where it is read again.
            _ => run::serve(args),
        },
        SidecarCommand::Init(args) => init(&args),
        SidecarCommand::Inject(args) => inject::inject(&args),
        #[cfg(feature = "controller")]
        SidecarCommand::Webhook(args) => webhook::webhook(*args),
    }
}

fn has_none(file: &std::path::Path) -> String {
    format!("{} has no `sidecar`: add `sidecar: {{}}`, or use `steelyard serve`", file.display())
}

fn init(args: &SidecarInitArgs) -> Exit {
    let Some(path) = args.config.as_ref().filter(|_| !args.remove) else {
        return remove(args.force);
    };
    let file = match files::load(path, Generation(1)) {
        Ok(file) => file,
        Err(errors) => {
            eprintln!("{}", errors.trim_end());
            return Exit::BadConfig;
        }
    };
    let Some(rules) = l4::capture::Rules::of(&file.snapshot) else {
        eprintln!("steelyard: {}", has_none(path));
        return Exit::BadConfig;
    };
    if args.print {
        return crate::print_line(rules.to_string().trim_end());
    }
    match rules.install() {
        Ok(()) => {
            crate::print_line(&format!("captured: {} (nft list table inet {})", rules.summary(), l4::capture::TABLE))
        }
        Err(why) => cannot(&why),
    }
}

fn remove(force: bool) -> Exit {
    let removed = if force { l4::capture::remove_completely() } else { l4::capture::remove() };
    match removed {
        Ok(true) if force => {
            crate::print_line("removed: connections are no longer captured, and those that were are broken")
        }
        Ok(true) => crate::print_line(
            "removed: new connections are no longer captured; those that were go on through the sidecar, so let it run until they have ended",
        ),
        Ok(false) => crate::print_line("nothing to remove: connections are not captured"),
        Err(why) => cannot(&why),
    }
}

fn cannot(why: &str) -> Exit {
    eprintln!("steelyard: {why}");
    Exit::HostCannot
}

fn gate(snapshot: &Snapshot) -> Option<&CaptureListener> {
    snapshot.listeners.iter().find_map(|listener| match &listener.protocol {
        Protocol::Capture(capture) => Some(capture),
        Protocol::Http(_) | Protocol::Tcp(_) | Protocol::Tls(_) => None,
    })
}

/// What the kernel does otherwise by the rules of the new snapshot; `None` if they are the same.
pub(crate) fn capture_differs(old: &Snapshot, new: &Snapshot) -> Option<&'static str> {
    match (l4::capture::Rules::of(old), l4::capture::Rules::of(new)) {
        (old, new) if old == new => None,
        (Some(_), None) => Some("the file has no `sidecar` any more"),
        (None, _) => Some("the file has a `sidecar` now"),
        (Some(_), Some(_)) => Some("`bind`, `exclude_ports` or `exclude_networks` of `sidecar` have changed"),
    }
}

/// Why this process cannot be the sidecar of a snapshot; `None` if it can, or if the snapshot has no sidecar.
pub(crate) fn runs_as_another_user(snapshot: &Snapshot) -> Option<String> {
    let expect = gate(snapshot)?.user;
    let user = rustix::process::geteuid().as_raw();
    (user != expect).then(|| {
        let mut why = format!(
            "this process runs as user {user}, and the kernel captures the connections of every user but {expect}: its own would come back \
             to it; run it as user {expect} (setpriv --reuid {expect} --clear-groups)"
        );
        // Many programs run as root, and none of them would be captured.
        if user != 0 {
            why += &format!(", or write `user: {user}` in `sidecar` if the application is another user");
        }
        why
    })
}
