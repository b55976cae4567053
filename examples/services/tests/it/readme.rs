//! Runs the programs of README.md in a new crate that its commands make. Each program must build
//! and run unchanged. The test is in this workspace, because its lock file has all features of
//! Tokio.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::programs::root;

/// Returns the code blocks of README.md with this fence, without the fences.
fn blocks<'a>(text: &'a str, fence: &str) -> Vec<&'a str> {
    let begin = format!("```{fence}\n");
    let parts = text.split(&begin).skip(1);
    parts
        .map(|part| part.split("```").next().unwrap())
        .collect()
}

/// Returns the commands that make the crate, with this checkout as the release and without
/// downloads.
fn commands(readme: &str) -> String {
    let block = blocks(readme, "console");
    let block = block
        .iter()
        .find(|block| block.contains("cargo new"))
        .unwrap();
    let lines = block.lines().map(|line| line.strip_prefix("$ ").unwrap());
    let commands = lines.collect::<Vec<_>>().join(" && ");
    let here = format!(
        "cargo add --offline --quiet --path '{}' tokio-doca",
        root().display()
    );
    let commands = commands.replace("cargo add tokio-doca", &here);
    commands.replace("cargo add tokio ", "cargo add --offline --quiet tokio ")
}

/// Returns the target folder of this test, so that shared dependencies are not built again.
fn target() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(3).unwrap().to_path_buf()
}

fn succeeds(command: &mut Command, folder: &Path) {
    let output = command
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target())
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// A folder outside of any workspace: otherwise `cargo new` would make the crate a member of it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let name = format!("tokio-doca-readme-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir(&folder.0).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_programs_of_the_readme_run_in_a_fresh_crate() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let folder = Folder::new();
    succeeds(
        Command::new("sh").args(["-c", &commands(&readme)]),
        &folder.0,
    );
    let hello = folder.0.join("hello");
    let lock = root().join("examples/services/Cargo.lock");
    fs::copy(lock, hello.join("Cargo.lock")).unwrap();
    let programs = blocks(&readme, "rust");
    assert_eq!(programs.len(), 2, "a copy, and an echo");
    for program in programs {
        fs::write(hello.join("src/main.rs"), program).unwrap();
        succeeds(
            Command::new("cargo").args(["run", "--offline", "--quiet"]),
            &hello,
        );
    }
}
