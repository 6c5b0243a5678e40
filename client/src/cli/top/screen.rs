//! The table on a terminal, and its keys.

use std::io::{self, Write as _};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap,
    EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use regex_lite::Regex;

use super::WAIT;
use super::picture::{Measure, Picture, Sort};
use super::text::{self, Layout};
use crate::charset;
use crate::cli::signals;
use unikprof_link::interrupt::Interrupt;
use unikprof_profile::printable::Printable;
use unikprof_profile::units::std_duration;
use unikprof_report::finding::wrapped;
use unikprof_report::report::shorten;

/// How far a key scrolls sideways.
const SIDEWAYS: usize = 8;

/// An agent that has not answered for this long is reported as silent.
const SILENCE: Duration = Duration::from_secs(5);

const KEYS: [(&str, &str); 11] = [
    ("q, Ctrl-C", "quit"),
    ("s", "sort by the next of: recent, watched, name"),
    ("t", "toggle self and total"),
    ("/", "show only functions whose name matches a regex; Enter keeps it, Ctrl-U clears it"),
    ("Esc", "show all functions"),
    ("space", "freeze the table, and let it go on"),
    ("Up, Down, k, j", "scroll by a line"),
    ("PgUp, PgDn", "scroll by a page"),
    ("g, G, Home, End", "scroll to the top, or to the end"),
    ("Left, Right", "scroll names that are cut"),
    ("? or h", "show or hide this help; Ctrl-L draws the screen again"),
];

/// Counts the signals that end a program, and restores the terminal before it is ended at once.
pub(super) fn listen(interrupt: &Interrupt) -> io::Result<()> {
    let ending = |is_late| {
        if is_late {
            restore();
        }
        None
    };
    signals::listen_telling(interrupt, || None, ending)
}

/// Takes the terminal.
fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, Hide)
}

/// Restores the terminal, as far as it is still there.
fn restore() {
    let _ = terminal::disable_raw_mode();
    let _ =
        execute!(io::stdout(), EndSynchronizedUpdate, EnableLineWrap, LeaveAlternateScreen, Show);
}

/// A line of the screen.
struct Line {
    text: String,
    style: Attribute,
}

impl From<String> for Line {
    fn from(text: String) -> Line {
        Line { text, style: Attribute::Reset }
    }
}

/// The bytes that show these lines from the top of a terminal with so many columns.
fn frame(lines: &[Line], columns: u16) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    queue!(bytes, BeginSynchronizedUpdate)?;
    for (row, Line { text, style }) in (0..).zip(lines) {
        let text = charset::local(Printable(text).to_string());
        let text: String = text.chars().take(columns.into()).collect();
        // Cleared first: how many columns a text fills depends on the terminal, and behind a full
        // line the cursor is still on its last character.
        queue!(bytes, MoveTo(0, row), Clear(ClearType::UntilNewLine), SetAttribute(*style))?;
        queue!(bytes, Print(&text), SetAttribute(Attribute::Reset))?;
    }
    queue!(bytes, EndSynchronizedUpdate)?;
    Ok(bytes)
}

/// The terminal as it is drawn on; however this ends, it is restored, and whoever fills the table
/// is told to end.
struct Screen<'i> {
    /// What the terminal shows. A frame that is the same is not written again.
    shown: Vec<u8>,
    interrupt: &'i Interrupt,
}

impl<'i> Screen<'i> {
    fn open(interrupt: &'i Interrupt) -> io::Result<Screen<'i>> {
        let hook = panic::take_hook();
        // A panic is told on the restored terminal.
        panic::set_hook(Box::new(move |panicked| {
            restore();
            hook(panicked);
        }));
        let screen = Screen { shown: Vec::new(), interrupt };
        enter()?;
        Ok(screen)
    }

    /// Gives the terminal to the shell until the program is to go on.
    fn suspend(&mut self) -> io::Result<()> {
        restore();
        #[cfg(unix)]
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP)?;
        self.shown.clear();
        enter()
    }

    fn draw(&mut self, app: &mut App) -> io::Result<()> {
        let (columns, lines) = terminal::size()?;
        let mut frame = frame(&app.screen(columns.into(), lines.into()), columns)?;
        match &app.typed {
            Some(typed) => {
                let column = u16::try_from(typed.cursor + 1).unwrap_or(u16::MAX);
                queue!(frame, MoveTo(column.min(columns), lines.saturating_sub(1)), Show)?;
            }
            None => queue!(frame, Hide)?,
        }
        if frame != self.shown {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&frame)?;
            stdout.flush()?;
            self.shown = frame;
        }
        Ok(())
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        restore();
        if !self.interrupt.stop() {
            self.interrupt.raise();
        }
    }
}

/// Waits for keys on a thread of its own: where the terminal is gone, crossterm never comes back.
fn keys() -> Receiver<io::Result<Event>> {
    let (sender, keys) = channel();
    thread::spawn(move || while sender.send(event::read()).is_ok() {});
    keys
}

/// Shows the table until the user quits, or nobody fills it.
pub(super) fn run(pictures: Receiver<Picture>, interrupt: &Interrupt) -> io::Result<()> {
    let is_suspended = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGTSTP, Arc::clone(&is_suspended))?;
    let mut screen = Screen::open(interrupt)?;
    let keys = keys();
    let mut app = App::new();
    loop {
        loop {
            match pictures.try_recv() {
                Ok(picture) => app.take(picture),
                Err(TryRecvError::Empty) => break,
                // Whoever fails, or finds nothing at all, says so without the table.
                Err(TryRecvError::Disconnected) if app.newest.is_none() => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    app.has_ended = true;
                    break;
                }
            }
        }
        // Before drawing: on a terminal that is gone, its size is asked of other programs.
        if interrupt.stop() {
            return Ok(());
        }
        screen.draw(&mut app)?;
        if is_suspended.swap(false, Ordering::Relaxed) {
            screen.suspend()?;
        }
        let event = match keys.recv_timeout(WAIT) {
            Ok(event) => event?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        match event {
            Event::Key(key) if key.kind == KeyEventKind::Press => match app.key(key) {
                Next::GoOn => {}
                Next::Quit => return Ok(()),
                Next::Suspend => screen.suspend()?,
                Next::DrawAgain => {
                    screen.shown.clear();
                    execute!(io::stdout(), Clear(ClearType::All))?;
                }
            },
            // The terminal may have dropped what it showed.
            Event::Resize(..) => screen.shown.clear(),
            _ => {}
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Quit,
    Suspend,
    DrawAgain,
}

/// A filter that is being typed; it filters as far as it is a regular expression.
struct Typed {
    text: String,
    /// Before which of its letters the next one is put.
    cursor: usize,
    /// The filter that Esc returns to.
    before: Option<Regex>,
    is_mistaken: bool,
}

impl Typed {
    /// The byte at which the cursor stands, or a letter behind it.
    fn at(&self, more: usize) -> usize {
        let at = self.text.char_indices().nth(self.cursor + more);
        at.map_or(self.text.len(), |(at, _)| at)
    }
}

/// What is shown, and how.
struct App {
    newest: Option<Picture>,
    /// Shown instead of the newest.
    frozen: Option<Picture>,
    /// When the newest came.
    came: Instant,
    has_ended: bool,
    sort: Sort,
    measure: Measure,
    filter: Option<Regex>,
    typed: Option<Typed>,
    shows_help: bool,
    /// The first row shown.
    offset: usize,
    /// How many letters of the names are left of the screen.
    left: usize,
    /// How many rows there is room for.
    page: usize,
}

impl App {
    fn new() -> App {
        App {
            newest: None,
            frozen: None,
            came: Instant::now(),
            has_ended: false,
            sort: Sort::default(),
            measure: Measure::default(),
            filter: None,
            typed: None,
            shows_help: false,
            offset: 0,
            left: 0,
            page: 1,
        }
    }

    fn take(&mut self, picture: Picture) {
        self.newest = Some(picture);
        self.came = Instant::now();
    }

    fn key(&mut self, key: KeyEvent) -> Next {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Next::Quit,
            KeyCode::Char('z') if control => return Next::Suspend,
            KeyCode::Char('l') if control => return Next::DrawAgain,
            _ => {}
        }
        if let Some(typed) = self.typed.take() {
            self.type_on(typed, key.code, control);
            return Next::GoOn;
        }
        match key.code {
            _ if control => {}
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    Sort::Recent => Sort::Watched,
                    Sort::Watched => Sort::Name,
                    Sort::Name => Sort::Recent,
                }
            }
            KeyCode::Char('t') => self.measure = self.measure.other(),
            KeyCode::Char('/') => {
                let before = self.filter.clone();
                let text = before.as_ref().map_or(String::new(), |it| it.as_str().to_owned());
                let cursor = text.chars().count();
                self.typed = Some(Typed { text, cursor, before, is_mistaken: false });
            }
            KeyCode::Esc if self.shows_help => self.toggle_help(),
            KeyCode::Esc => self.filter = None,
            KeyCode::Char(' ') => {
                self.frozen = match self.frozen.take() {
                    None => self.newest.clone(),
                    Some(_) => None,
                }
            }
            KeyCode::Char('?' | 'h') => self.toggle_help(),
            KeyCode::Down | KeyCode::Char('j') => self.offset = self.offset.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset = self.offset.saturating_add(self.page),
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(self.page),
            KeyCode::Home | KeyCode::Char('g') => self.offset = 0,
            KeyCode::End | KeyCode::Char('G') => self.offset = usize::MAX,
            KeyCode::Left => self.left = self.left.saturating_sub(SIDEWAYS),
            KeyCode::Right => self.left = self.left.saturating_add(SIDEWAYS),
            _ => {}
        }
        Next::GoOn
    }

    fn toggle_help(&mut self) {
        self.shows_help = !self.shows_help;
        self.offset = 0;
    }

    /// A key while a filter is typed.
    fn type_on(&mut self, mut typed: Typed, key: KeyCode, control: bool) {
        match key {
            KeyCode::Esc => {
                self.filter = typed.before;
                return;
            }
            KeyCode::Enter if !typed.is_mistaken => return,
            KeyCode::Char('u') if control => {
                typed.text.clear();
                typed.cursor = 0;
            }
            KeyCode::Char('a') if control => typed.cursor = 0,
            KeyCode::Char('e') if control => typed.cursor = typed.text.chars().count(),
            KeyCode::Home => typed.cursor = 0,
            KeyCode::End => typed.cursor = typed.text.chars().count(),
            KeyCode::Left => typed.cursor = typed.cursor.saturating_sub(1),
            KeyCode::Right => {
                typed.cursor = (typed.cursor + 1).min(typed.text.chars().count());
            }
            KeyCode::Backspace if typed.cursor > 0 => {
                typed.cursor -= 1;
                typed.text.remove(typed.at(0));
            }
            KeyCode::Delete if typed.at(0) < typed.at(1) => {
                typed.text.remove(typed.at(0));
            }
            KeyCode::Char(letter) if !control => {
                typed.text.insert(typed.at(0), letter);
                typed.cursor += 1;
            }
            _ => {}
        }
        self.offset = 0;
        match Regex::new(&typed.text) {
            Ok(filter) => {
                self.filter = (!typed.text.is_empty()).then_some(filter);
                typed.is_mistaken = false;
            }
            Err(_) => typed.is_mistaken = true,
        }
        self.typed = Some(typed);
    }

    /// All lines of a screen with so many columns and lines.
    fn screen(&mut self, columns: usize, height: usize) -> Vec<Line> {
        let Some(body) = height.checked_sub(1) else {
            return Vec::new();
        };
        let mut lines =
            if self.shows_help { self.help(columns, body) } else { self.lines(columns, body) };
        lines.resize_with(body, || Line::from(String::new()));
        let foot = format!("{:columns$}", self.foot());
        lines.push(Line { text: foot, style: Attribute::Reverse });
        lines
    }

    /// The keys, in so many columns and lines.
    fn help(&mut self, columns: usize, height: usize) -> Vec<Line> {
        let text = KEYS.map(|(key, what)| format!("  {key:<18}{what}\n")).concat();
        let text = wrapped(&text, columns);
        self.page = height.max(1);
        self.offset = self.offset.min(text.lines().count().saturating_sub(self.page));
        let shown = text.lines().skip(self.offset).take(height);
        shown.map(|line| Line::from(line.to_owned())).collect()
    }

    /// The table, in so many columns and lines.
    fn lines(&mut self, columns: usize, height: usize) -> Vec<Line> {
        let Some(picture) = self.frozen.as_ref().or(self.newest.as_ref()) else {
            return vec![Line::from("reading images, and waiting for samples".to_owned())];
        };
        let mut lines: Vec<Line> =
            text::head(picture, columns).into_iter().map(Line::from).collect();
        // The first is enough here; plain tables have all.
        if let Some(warning) = picture.warnings.first() {
            lines.push(Line::from(format!("warning: {}", Printable(warning))));
        }
        lines.push(Line::from(String::new()));
        let layout = Layout::fitting(columns);
        let headings = text::headings(layout, self.measure, self.sort, &picture.recent);
        lines.extend(headings.map(|text| Line { text, style: Attribute::Bold }));
        let rows = picture.sorted(self.sort, self.measure, self.filter.as_ref());
        if rows.is_empty() && self.filter.is_some() {
            lines.push(Line::from("no match".to_owned()));
        }
        self.page = height.saturating_sub(lines.len()).max(1);
        self.offset = self.offset.min(rows.len().saturating_sub(self.page));
        let name_columns = columns.saturating_sub(layout.names_begin()).max(1);
        let shown: Vec<_> = rows.iter().skip(self.offset).take(self.page).collect();
        let names = shown.iter().map(|row| Printable(&row.name).to_string());
        let names: Vec<String> = names.collect();
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        self.left = self.left.min(longest.saturating_sub(name_columns));
        for (row, name) in shown.into_iter().zip(&names) {
            let name = match self.left {
                0 => shorten::name(name, name_columns),
                left => name.chars().skip(left).collect::<String>().into(),
            };
            let figures = text::figures(layout, row, self.measure, picture.unit());
            lines.push(Line::from(format!("{figures}{name}")));
        }
        lines
    }

    fn foot(&self) -> String {
        if let Some(typed) = &self.typed {
            let mistake = if typed.is_mistaken { "   not a regular expression" } else { "" };
            return format!("/{}{mistake}", typed.text);
        }
        if self.shows_help {
            return "q quit  ? table  j, k scroll".to_owned();
        }
        let mut parts = Vec::new();
        if self.has_ended {
            parts.push("the recording has ended".to_owned());
        } else if self.newest.is_some() && self.came.elapsed() > SILENCE {
            parts.push(format!("nothing new for {}", std_duration(self.came.elapsed())));
        }
        if self.frozen.is_some() {
            parts.push("frozen".to_owned());
        }
        if let Some(filter) = &self.filter {
            parts.push(format!("filter /{filter}/"));
        }
        parts.push("q quit  ? help  s sort  t self/total  / filter  space freeze".to_owned());
        parts.join("   ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::picture::tests::picture;
    use super::*;

    fn drawn(app: &mut App) -> Vec<String> {
        let lines = app.screen(100, 12);
        lines.iter().map(|line| line.text.trim_end().to_owned()).collect()
    }

    fn press(app: &mut App, keys: &str) -> Next {
        let mut next = Next::GoOn;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                key => KeyCode::Char(key),
            };
            next = app.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        next
    }

    /// The names in the table, from the top.
    fn names(app: &mut App) -> Vec<String> {
        let lines = drawn(app);
        let heading = lines.iter().position(|line| line.contains("function"));
        let rows = &lines[heading.unwrap() + 1..lines.len() - 1];
        let names = rows.iter().filter_map(|row| row.split_whitespace().last());
        names.map(ToOwned::to_owned).collect()
    }

    fn app() -> App {
        let mut app = App::new();
        app.take(picture());
        app
    }

    #[test]
    fn keys_sort_and_toggle() {
        let mut app = app();
        assert_eq!(names(&mut app), ["main", "shop::new", "shop::old"]);
        press(&mut app, "t");
        assert_eq!(names(&mut app), ["shop::new", "main", "shop::old"]);
        press(&mut app, "s");
        assert_eq!(names(&mut app), ["shop::old", "shop::new", "main"]);
        press(&mut app, "s");
        assert_eq!(names(&mut app), ["main", "shop::new", "shop::old"]);
        press(&mut app, "s");
        assert_eq!(names(&mut app), ["shop::new", "main", "shop::old"]);
    }

    #[test]
    fn a_filter_is_typed_mended_and_dropped() {
        let mut app = app();
        press(&mut app, "/shop::(");
        assert!(drawn(&mut app)[11].starts_with("/shop::("));
        press(&mut app, "\n");
        let foot = drawn(&mut app).pop().unwrap();
        assert!(foot.contains("not a regular expression"), "{foot}");
        // While a filter is typed, no letter is a command.
        assert_eq!(press(&mut app, "q"), Next::GoOn);
        for _ in 0..2 {
            app.key(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
        }
        press(&mut app, "o");
        assert_eq!(names(&mut app), ["shop::old"], "as it is typed");
        for code in [KeyCode::Home, KeyCode::Delete] {
            app.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        press(&mut app, "x\n");
        let foot = drawn(&mut app).pop().unwrap();
        assert!(foot.contains("filter /xhop::o/"), "{foot}");
        assert!(drawn(&mut app).iter().any(|line| line == "no match"));
        press(&mut app, "/");
        app.key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
        assert_eq!(names(&mut app).len(), 3);
        press(&mut app, "old\n");
        press(&mut app, "\x1b");
        assert_eq!(names(&mut app).len(), 3);
    }

    #[test]
    fn a_frozen_table_stays_and_goes_on() {
        let mut app = app();
        press(&mut app, " ");
        let mut next = picture();
        next.rows.truncate(1);
        app.take(next);
        assert_eq!(names(&mut app).len(), 3);
        assert!(drawn(&mut app)[11].contains("frozen"));
        press(&mut app, " ");
        assert_eq!(names(&mut app), ["main"]);
    }

    #[test]
    fn help_lists_the_keys_and_scrolling_ends_at_the_last_row() {
        let mut app = app();
        press(&mut app, "?");
        assert!(drawn(&mut app).iter().any(|line| line.contains("toggle self and total")));
        // What does not fit is reached with the same keys as the table's rows.
        let lines =
            |app: &mut App| app.screen(40, 6).into_iter().map(|line| line.text).collect::<Vec<_>>();
        let first = lines(&mut app);
        assert!(first[0].contains("q, Ctrl-C"), "{first:?}");
        assert!(first[5].trim_end().ends_with("scroll"), "{first:?}");
        press(&mut app, "G");
        let last = lines(&mut app);
        assert!(last[4].contains("draws the screen again"), "{last:?}");
        assert!(first.iter().chain(&last).all(|line| line.chars().count() <= 40));
        press(&mut app, "?jjjjjjjj");
        assert_eq!(names(&mut app).len(), 3, "all rows fit");
        assert_eq!(press(&mut app, "q"), Next::Quit);
    }

    #[test]
    fn keys_go_to_either_end_and_sideways() {
        let mut app = app();
        let name = "shop::a_function_with_a_long_name_that_does_not_fit_on_this_screen".to_owned();
        app.newest.as_mut().unwrap().rows[2].name = name;
        press(&mut app, "t");
        let top = |app: &mut App| app.screen(40, 9)[6].text.clone();
        assert!(top(&mut app).contains("shop::a_…"), "{}", top(&mut app));
        app.key(KeyEvent::new(KeyCode::Right, KeyModifiers::NONE));
        assert!(top(&mut app).contains("  function_with"), "{}", top(&mut app));
        press(&mut app, "G");
        assert!(top(&mut app).contains("shop::old") || app.offset > 0);
        press(&mut app, "g");
        assert_eq!(app.offset, 0);
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(app.key(control('z')), Next::Suspend);
        assert_eq!(app.key(control('l')), Next::DrawAgain);
    }

    /// Whatever the terminal's size, drawing does not panic, and fills it.
    #[test]
    fn tiny_terminals_are_drawn_on() {
        for (columns, lines) in [(0, 0), (1, 1), (2, 3), (30, 2), (500, 60)] {
            let mut app = app();
            for _ in 0..2 {
                let drawn = app.screen(columns.into(), lines);
                assert_eq!(drawn.len(), lines);
                frame(&drawn, columns).unwrap();
                press(&mut app, "?");
            }
        }
    }

    /// A line neither leaves its row nor moves the cursor, and what was there before is cleared.
    #[test]
    fn a_frame_is_lines_that_end_at_the_last_column() {
        let lines = ["a\x1b[2Jb", "four", "fives"].map(|text| Line::from(text.to_owned()));
        let shown = String::from_utf8(frame(&lines, 4).unwrap()).unwrap();
        let (clear, plain) = ("\x1b[K", "\x1b[0m");
        let row = |at: u8, text: &str| format!("\x1b[{at};1H{clear}{plain}{text}{plain}");
        let rows = [row(1, "a\\u{"), row(2, "four"), row(3, "five")].concat();
        assert_eq!(shown, format!("\x1b[?2026h{rows}\x1b[?2026l"));
    }
}
