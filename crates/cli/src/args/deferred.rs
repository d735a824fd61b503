//! Parts of the command line that are described on demand. The whole tree has about 70 commands and
//! 500 options. Building it took a third of the time of a short command, which uses only one of the
//! commands.

use clap::builder::Resettable;
use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};

/// The options of a command, or the commands of a group. The parser describes them only after it
/// has read the preceding command.
///
/// Properties of the command itself, such as its name and its text in a list, are attributes of the
/// variant, which always exists.
#[derive(Debug)]
pub(crate) struct Deferred<T>(pub(crate) T);

impl<T: FromArgMatches> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }

    fn update_from_arg_matches_mut(&mut self, matches: &mut ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches_mut(matches)
    }
}

impl<T: Args> Args for Deferred<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(|command| described(command, T::augment_args))
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(|command| described(command, T::augment_args_for_update))
    }
}

impl<T: Subcommand> Subcommand for Deferred<T> {
    fn augment_subcommands(command: Command) -> Command {
        command.defer(|command| described(command, T::augment_subcommands))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        command.defer(|command| described(command, T::augment_subcommands_for_update))
    }

    fn has_subcommand(name: &str) -> bool {
        T::has_subcommand(name)
    }
}

/// Returns the command with its parts. Keeps the command's own texts, because the texts of the type
/// that describes the parts are about that type.
fn described(command: Command, describe: impl FnOnce(Command) -> Command) -> Command {
    let about = command.get_about().cloned();
    let long_about = command.get_long_about().cloned();
    let globals = command.get_arguments().filter(|arg| arg.is_global_set());
    let globals: Vec<clap::Id> = globals.map(|arg| arg.get_id().clone()).collect();
    let mut command = describe(command);
    // Moves the global options after the command's own, so that the help lists them last.
    for id in globals {
        command = command.mut_arg(id, |arg| arg);
    }
    if let Some(about) = about {
        command = command
            .about(about)
            .long_about(Resettable::from(long_about));
    }
    command
}
