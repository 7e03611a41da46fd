//! Options by their names with dots, as `keyspace.size_ratio`: in a table as an options file holds it.

/// Sets the option called `name` in `table`.
///
/// # Errors
/// The part of `name` that holds one value and no names.
pub fn set(table: &mut toml::Table, name: &str, value: toml::Value) -> Result<(), String> {
    let (mut table, mut rest) = (table, name);
    while let Some((folder, within)) = rest.split_once('.') {
        let inner = table.entry(folder).or_insert_with(|| toml::Table::new().into());
        let toml::Value::Table(inner) = inner else { return Err(format!("{folder:?} holds one value, no names")) };
        (table, rest) = (inner, within);
    }
    table.insert(rest.to_owned(), value);
    Ok(())
}

/// Puts what `over` says into `under`, table by table.
pub fn overlay(under: &mut toml::Table, over: &toml::Table) {
    for (name, value) in over {
        match (under.get_mut(name), value) {
            (Some(toml::Value::Table(under)), toml::Value::Table(over)) => overlay(under, over),
            _ => {
                under.insert(name.clone(), value.clone());
            }
        }
    }
}
