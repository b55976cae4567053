//! Tests help, exit codes, colours, pipes and completions.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::support::{Folder, Ran};

const COMMANDS: [&str; 10] = [
    "devices",
    "caps",
    "check",
    "doctor",
    "bench",
    "copy",
    "hash",
    "send",
    "serve",
    "completions",
];

#[test]
fn help_fits_a_screen_and_names_each_command() {
    let folder = Folder::new();
    let help = folder.run(["--help"]).done();
    assert!(help.lines().count() <= 24, "{help}");
    assert!(help.contains("0 done, 1 failed, 2 wrong usage"), "{help}");
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
        let help = folder.run([command, "--help"]).done();
        assert!(help.lines().all(|line| line.len() <= 80), "{help}");
    }
    assert!(help.lines().all(|line| line.len() <= 80), "{help}");
    for of in [["check", "serve"], ["bench", "serve"], ["bench", "compare"]] {
        let help = folder.run([&of[..], &["--help"]].concat()).done();
        assert!(help.lines().all(|line| line.len() <= 80), "{help}");
    }
}

#[test]
fn an_odd_address_is_told_how_one_is_written() {
    let folder = Folder::new();
    folder.write("a", "bytes");
    let addrs = [
        "",
        "127.0.0.1:",
        "127.0.0.1:99999",
        "host:0",
        "host:port",
        "[::1",
        "a b",
    ];
    for addr in addrs {
        for args in [
            &["send", "a", addr][..],
            &["check", "--peer", addr],
            &["bench", "stream", "--peer", addr],
        ] {
            folder
                .run(args)
                .refused(2, &["is no address: write HOST or HOST:PORT"]);
        }
    }
}

#[test]
fn wrong_usage_is_one_sentence_and_code_2() {
    let folder = Folder::new();
    for (args, part) in [
        (&["devics"][..], "similar subcommand exists: 'devices'"),
        (&["caps"], "<DEVICE>"),
        (&["copy", "a"], "<DST>"),
        (&["hash"], "<FILES>"),
        (&["hash", "-a", "md5", "a"], "sha1, sha256, sha512"),
        (&["devices", "--xml"], "--xml"),
        (&["check", "--all"], "--all"),
        (&["check", "pf0", "pf1"], "'pf1'"),
        (&["send", "a"], "<ADDR>"),
        (&["send", "-", "127.0.0.1:1"], "--name"),
        (&["serve"], "--out"),
        (&["bench"], "<KIND>"),
        (
            &["bench", "rdma", "send"],
            "'send' does not go with what is before it",
        ),
        (
            &["bench", "dma", "serve"],
            "'serve' does not go with what is before it",
        ),
        (&["completions", "sh"], "bash"),
    ] {
        folder.run(args).refused(2, &[part]);
    }
    folder
        .run(["--xml"])
        .refused(2, &["'--xml'", "; see --help"]);
    let help = folder.run(["help", "bench"]).done();
    assert_eq!(help, folder.run(["bench", "--help"]).done());
    let none = folder.run::<&str>([]);
    assert_eq!(none.code, Some(2));
    assert!(none.err.contains("Usage: tokio-doca"), "{}", none.err);
}

#[test]
fn a_folder_in_place_of_a_file_is_named_as_one() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("d")).unwrap();
    folder.write("a", "bytes");
    for (args, says) in [
        (
            &["hash", "d"][..],
            "cannot hash d: it is a directory: name a file",
        ),
        (&["copy", "d", "b"], "it is a directory: name a file"),
        (
            &["send", "a", "127.0.0.1", "--token-file", "d"],
            "d is a directory: name the file",
        ),
        (
            &["serve", "--out", "nothing"],
            "nothing does not exist: make it first",
        ),
    ] {
        folder.run(args).refused(1, &[says]);
    }
}

#[test]
fn unknown_devices_are_refused_by_every_command() {
    let folder = Folder::new();
    folder.write("a", "bytes");
    for args in [
        &["caps", "pf9"][..],
        &["check", "pf9"],
        &["copy", "a", "b", "--device", "pf9"],
        &["hash", "a", "--device", "pf9"],
        &["bench", "dma", "--device", "pf9"],
    ] {
        folder
            .run(args)
            .refused(1, &["no device \"pf9\"", "there are: pf0"]);
    }
    assert_eq!(folder.names(), ["a"]);
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let folder = Folder::new();
    for args in [
        &["devices"][..],
        &["caps", "pf0"],
        &["doctor"],
        &["completions", "zsh"],
        &["--help"],
    ] {
        let mut child = folder.command(args);
        let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        // The pipe is closed before the process has begun to write, or soon after.
        drop(child.stdout.take());
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), &*said),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

#[test]
fn an_output_that_cannot_be_written_is_a_failure() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let folder = Folder::new();
    let mut command = folder.command(["devices"]);
    let output = command.stdout(full).stderr(Stdio::piped()).output();
    Ran::of(output.unwrap()).refused(1, &["cannot write the output: No space left"]);
}

/// Returns what a command prints on a terminal, which `script` of util-linux provides; `None`
/// without `script`.
fn on_terminal(folder: &Folder, variable: (&str, &str)) -> Option<String> {
    let line = format!("{} devices", env!("CARGO_BIN_EXE_tokio-doca"));
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null());
    command.env_remove("NO_COLOR").env("TERM", "xterm");
    command
        .env(variable.0, variable.1)
        .current_dir(folder.path(""));
    let output = command.output().ok()?;
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn there_are_colours_on_a_terminal_only_and_without_no_color() {
    let folder = Folder::new();
    assert!(!folder.run(["devices"]).done().contains('\x1b'));
    let Some(text) = on_terminal(&folder, ("UNRELATED", "1")) else {
        return println!("not run: there is no script");
    };
    assert!(text.contains("\x1b[1mDEVICE"), "{text}");
    let text = on_terminal(&folder, ("NO_COLOR", "1")).unwrap();
    assert!(text.contains("DEVICE") && !text.contains('\x1b'), "{text}");
}

#[test]
fn completions_know_the_commands() {
    let folder = Folder::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = folder.run(["completions", shell]).done();
        for command in COMMANDS {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
}
