//! Keys and what they mean.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Command of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Quit,
    Back,
    Open,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    NextTab,
    PreviousTab,
    Tab(usize),
    Sort,
    Reverse,
    Search,
    Span,
    Cancel,
    Resubmit,
    Stop,
    Drain,
    Pause,
    Acknowledge,
    /// All tasks of a job or worker.
    Tasks,
    /// The output of a task.
    Log,
    OtherStream,
    Follow,
    /// Memory and cpus of the task over time.
    Usage,
    NextMatch,
    PreviousMatch,
    Copy,
    Help,
    Earlier,
    Later,
    MuchEarlier,
    MuchLater,
    Play,
}

const KEYS: &[(KeyCode, Command)] = &[
    (KeyCode::Char('q'), Command::Quit),
    (KeyCode::Esc, Command::Back),
    (KeyCode::Backspace, Command::Back),
    (KeyCode::Enter, Command::Open),
    (KeyCode::Up, Command::Up),
    (KeyCode::Char('k'), Command::Up),
    (KeyCode::Down, Command::Down),
    (KeyCode::Char('j'), Command::Down),
    (KeyCode::PageUp, Command::PageUp),
    (KeyCode::PageDown, Command::PageDown),
    (KeyCode::Home, Command::First),
    (KeyCode::Char('g'), Command::First),
    (KeyCode::End, Command::Last),
    (KeyCode::Char('G'), Command::Last),
    (KeyCode::Tab, Command::NextTab),
    (KeyCode::BackTab, Command::PreviousTab),
    (KeyCode::Char('1'), Command::Tab(0)),
    (KeyCode::Char('2'), Command::Tab(1)),
    (KeyCode::Char('3'), Command::Tab(2)),
    (KeyCode::Char('4'), Command::Tab(3)),
    (KeyCode::Char('5'), Command::Tab(4)),
    (KeyCode::Char('s'), Command::Sort),
    (KeyCode::Char('r'), Command::Reverse),
    (KeyCode::Char('/'), Command::Search),
    (KeyCode::Char('t'), Command::Span),
    (KeyCode::Char('c'), Command::Cancel),
    (KeyCode::Char('R'), Command::Resubmit),
    (KeyCode::Char('x'), Command::Stop),
    (KeyCode::Char('d'), Command::Drain),
    (KeyCode::Char('p'), Command::Pause),
    (KeyCode::Char('A'), Command::Acknowledge),
    (KeyCode::Char('a'), Command::Tasks),
    (KeyCode::Char('l'), Command::Log),
    (KeyCode::Char('o'), Command::OtherStream),
    (KeyCode::Char('f'), Command::Follow),
    (KeyCode::Char('u'), Command::Usage),
    (KeyCode::Char('n'), Command::NextMatch),
    (KeyCode::Char('N'), Command::PreviousMatch),
    (KeyCode::Char('y'), Command::Copy),
    (KeyCode::Char('?'), Command::Help),
    (KeyCode::Left, Command::Earlier),
    (KeyCode::Right, Command::Later),
    (KeyCode::Char('['), Command::MuchEarlier),
    (KeyCode::Char(']'), Command::MuchLater),
    (KeyCode::Char(' '), Command::Play),
];

/// Command of a key, if it has one.
pub(crate) fn command(key: &KeyEvent) -> Option<Command> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Command::Quit);
    }
    let found = KEYS.iter().find(|(code, _)| *code == key.code);
    found.map(|(_, command)| *command)
}
