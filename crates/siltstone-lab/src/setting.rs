//! Options by their names with dots, as `keyspace.size_ratio`: in a table as an options file holds it.

/// Sets the option called `name` in `table`. In a list of tables the part after the list's name is the `name` of one of them, or its place, the
/// first being 0: `phase.run.clients`.
///
/// # Errors
/// The part of `name` that holds one value and no names, or that the list does not have.
pub fn set(table: &mut toml::Table, name: &str, value: toml::Value) -> Result<(), String> {
    let (mut table, mut rest) = (table, name);
    while let Some((folder, within)) = rest.split_once('.') {
        let mut inner = table.entry(folder).or_insert_with(|| toml::Table::new().into());
        let mut within = within;
        if let toml::Value::Array(list) = inner {
            let (which, field) =
                within.split_once('.').ok_or_else(|| format!("{folder:?} is a list; name one of it"))?;
            let place = list.iter().position(|entry| entry.get("name").and_then(toml::Value::as_str) == Some(which));
            let place = place.or_else(|| which.parse().ok()).filter(|place| *place < list.len());
            (inner, within) = (&mut list[place.ok_or_else(|| format!("{folder:?} has no {which:?}"))?], field);
        }
        let toml::Value::Table(inner) = inner else { return Err(format!("{folder:?} holds one value, no names")) };
        (table, rest) = (inner, within);
    }
    table.insert(rest.to_owned(), value);
    Ok(())
}

/// Whether `table` holds the option called `name`.
pub fn holds(table: &toml::Table, name: &str) -> bool {
    match name.split_once('.') {
        None => table.contains_key(name),
        Some((folder, rest)) => {
            table.get(folder).and_then(toml::Value::as_table).is_some_and(|inner| holds(inner, rest))
        }
    }
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
