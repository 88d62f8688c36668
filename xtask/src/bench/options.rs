//! The command line of the benches: pairs of `--option value`.

/// The options of a bench that runs in rounds, with their defaults.
pub struct Options<T> {
    pub rounds: usize,
    /// The duration of one turn.
    pub seconds: u64,
    /// What to measure: scenarios or rows.
    pub only: Vec<T>,
}

impl<T> Options<T> {
    /// Applies `arguments` to the defaults. `by_name` finds what a name after `--only` stands for. `other` takes an
    /// option that only this bench has, and returns whether it is one.
    pub fn parse(
        mut self,
        arguments: &[String],
        usage: &str,
        by_name: impl Fn(&str) -> Result<Vec<T>, String>,
        mut other: impl FnMut(&str, &str) -> bool,
    ) -> Result<Self, String> {
        for pair in pairs(arguments, usage) {
            let (option, value) = pair?;
            let number = || value.parse::<u64>().ok().filter(|number| (1..=1000).contains(number)).ok_or(usage);
            match option {
                "--rounds" => self.rounds = number()? as usize,
                "--seconds" => self.seconds = number()?,
                "--only" => {
                    let named = value.split(',').map(&by_name).collect::<Result<Vec<_>, _>>()?;
                    self.only = named.into_iter().flatten().collect();
                }
                _ if other(option, value) => {}
                _ => return Err(usage.into()),
            }
        }
        Ok(self)
    }
}

/// Returns options and their values, or the usage if an option has no value.
pub fn pairs<'a>(arguments: &'a [String], usage: &str) -> impl Iterator<Item = Result<(&'a str, &'a str), String>> {
    arguments.chunks(2).map(move |pair| match pair {
        [option, value] => Ok((option.as_str(), value.as_str())),
        _ => Err(usage.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses for a bench of `a`, `b` and `c` that also knows `--loud yes`. Returns rounds, seconds and what to
    /// measure, or the error.
    fn check(line: &str, expect: Result<(usize, u64, &str), &str>) {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let by_name = |name: &str| match name {
            "a" | "b" | "c" => Ok(vec![name.to_owned()]),
            "ab" => Ok(vec!["a".to_owned(), "b".to_owned()]),
            _ => Err(format!("no `{name}`")),
        };
        let options = Options { rounds: 5, seconds: 2, only: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()] };
        let options =
            options.parse(&arguments, "usage: bench", by_name, |option, value| (option, value) == ("--loud", "yes"));
        let got = options.map(|options| (options.rounds, options.seconds, options.only.concat()));
        assert_eq!(
            got,
            expect.map(|(rounds, seconds, only)| (rounds, seconds, only.to_owned())).map_err(str::to_owned),
            "{line}"
        );
    }

    #[test]
    fn pairs_of_options_and_values() {
        check("", Ok((5, 2, "abc")));
        check("--rounds 1000 --seconds 1 --only b", Ok((1000, 1, "b")));
        check("--only c,ab --loud yes --only ab,c", Ok((5, 2, "abc")));
        check("--rounds 3 --rounds 4", Ok((4, 2, "abc")));
        check("--only d", Err("no `d`"));
        check("--only a,", Err("no ``"));
        for wrong in ["--rounds", "--rounds 0", "--rounds 1001", "--seconds x", "--loud no", "--quick yes", "a"] {
            check(wrong, Err("usage: bench"));
        }
        check("--rounds 3 --only", Err("usage: bench"));
    }
}
