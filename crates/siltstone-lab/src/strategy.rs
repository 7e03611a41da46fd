//! What a user may write where a strategy is asked for: the name of a preset, or the path of a strategy file.
//!
//! The engine opens no files of its users, so the file is read here, once, and its text becomes the option.

use std::path::Path;

use anyhow::{Context, bail};
use siltstone::compaction::CompactionPolicy;
use siltstone::compaction::strategy::{Strategy, strategies};

/// A strategy that was named and read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Its name, for people.
    pub name: String,
    /// What the option `strategy` of a keyspace becomes: the name of a preset, or the text of the file.
    pub option: String,
}

impl Chosen {
    /// Whether it drops the oldest data, so that a keyspace needs the option `may_lose_oldest` for it.
    pub fn loses_oldest(&self) -> bool {
        Strategy::resolve(&self.option).is_ok_and(|strategy| strategy.loses_oldest())
    }
}

/// What `argument` means: a preset's name, the path of a strategy file (`./mine.toml`), or a strategy file's text.
///
/// # Errors
/// If it is neither, with the names that there are; if the file cannot be read; if it is wrong, with the line, the value and what would
/// be allowed.
pub fn choose(argument: &str) -> anyhow::Result<Chosen> {
    let argument = argument.trim();
    if strategies().iter().any(|preset| preset.name == argument) {
        return Ok(Chosen { name: argument.to_owned(), option: argument.to_owned() });
    }
    if argument.contains('\n') {
        return Ok(Chosen { name: Strategy::parse(argument)?.name, option: argument.to_owned() });
    }
    let path = Path::new(argument);
    let is_toml = path.extension().is_some_and(|ending| ending == "toml");
    if is_toml || argument.contains(std::path::MAIN_SEPARATOR) || path.is_file() {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read the strategy file {argument}"))?;
        let strategy = Strategy::parse(&text).with_context(|| format!("strategy file {argument}"))?;
        return Ok(Chosen { name: strategy.name, option: text });
    }
    let names: Vec<&str> = strategies().iter().map(|preset| preset.name).collect();
    bail!(
        "there is no strategy {argument:?}: give the path of a strategy file (./mine.toml) or choose one of {}",
        names.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_a_file_and_a_text_are_strategies() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let text = siltstone::compaction::strategies()[0].text.replacen("name = ", "name = \"x\" #", 1);
        std::fs::write(&path, &text).unwrap();
        let file = choose(path.to_str().unwrap()).unwrap();
        assert_eq!((file.name.as_str(), file.option.as_str()), ("x", text.as_str()));
        assert_eq!(choose(&text).unwrap().name, "x");
        assert_eq!(choose(" leveling ").unwrap(), Chosen { name: "leveling".into(), option: "leveling".into() });
        let error = choose("levelling").unwrap_err().to_string();
        assert!(error.contains("levelling") && error.contains("one-leveling"), "{error}");
        assert!(choose("./none.toml").unwrap_err().to_string().contains("./none.toml"));
        std::fs::write(&path, "name = \"y\"\nsize_ratio = 1\n").unwrap();
        let error = format!("{:#}", choose(path.to_str().unwrap()).unwrap_err());
        assert!(error.contains("mine.toml") && error.contains("layout"), "{error}");
    }
}
