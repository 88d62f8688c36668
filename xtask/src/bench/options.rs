//! What the benches are told on the command line: `--option value`, one pair after the other.

/// What a bench that goes by rounds can be told, and what it does unless it is.
pub struct Options<T> {
    pub rounds: usize,
    /// Of one turn.
    pub seconds: u64,
    /// What is measured: scenarios, rows.
    pub only: Vec<T>,
}

impl<T> Options<T> {
    /// These, as far as `arguments` do not say otherwise. `by_name` finds what a name behind `--only` stands for; `other` takes an option that this
    /// bench alone has, and says whether it is one.
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

/// Options and their values; the usage in the place of an option without one.
pub fn pairs<'a>(arguments: &'a [String], usage: &str) -> impl Iterator<Item = Result<(&'a str, &'a str), String>> {
    arguments.chunks(2).map(move |pair| match pair {
        [option, value] => Ok((option.as_str(), value.as_str())),
        _ => Err(usage.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a bench of `a`, `b` and `c` that knows `--loud yes` besides: rounds, seconds and what is measured, or what is said.
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
