//! The table on a terminal, and its keys.

use std::io::{self, Write as _};
use std::panic;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
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

use super::picture::{Measure, Picture, Sort};
use super::text;
use super::watch::Watch;
use crate::charset;
use crate::cli::failure::Failure;
use crate::interrupt::Interrupt;
use crate::printable::Printable;
use crate::units::std_duration;

/// How long a key is waited for before new pictures are looked for.
const KEY_WAIT: Duration = Duration::from_millis(50);

/// An agent that has not answered for this long is reported as silent.
const SILENCE: Duration = Duration::from_secs(5);

const KEYS: [(&str, &str); 9] = [
    ("s", "sort by the next of: recent, since start, name"),
    ("t", "toggle self and total"),
    ("/", "show only functions whose name matches a regex; Enter ends it"),
    ("Esc", "show all functions"),
    ("space", "freeze the table, and let it go on"),
    ("Up, Down, k, j", "scroll by a line"),
    ("PgUp, PgDn, Home", "scroll by a page, or to the top"),
    ("? or h", "show or hide this help"),
    ("q, Ctrl-C", "quit"),
];

/// Counts the signals that end a program, and restores the terminal before it is ended at once.
pub(super) fn listen(interrupt: &Interrupt) -> io::Result<()> {
    interrupt.listen_telling(|| (), restore)
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
        terminal::enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, Hide)?;
        Ok(screen)
    }

    fn draw(&mut self, app: &mut App) -> io::Result<()> {
        let (columns, lines) = terminal::size()?;
        let frame = frame(&app.screen(columns.into(), lines.into()), columns)?;
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

/// Shows the table until the user quits.
pub(super) fn run(watch: Watch<'_>, interrupt: &Interrupt, every: Duration) -> Result<(), Failure> {
    thread::scope(|scope| {
        let (sender, pictures) = channel();
        let follower = scope.spawn(move || {
            // Where nobody shows pictures any more, the interrupt was raised.
            watch.run(every, |picture| Ok(sender.send(picture).is_ok()))
        });
        let drawn = draw_until_quit(interrupt, &pictures);
        let followed = follower.join();
        drawn.map_err(Failure::Stdout)?;
        match followed {
            Ok(followed) => followed,
            Err(panicked) => panic::resume_unwind(panicked),
        }
    })
}

fn draw_until_quit(interrupt: &Interrupt, pictures: &Receiver<Picture>) -> io::Result<()> {
    let mut screen = Screen::open(interrupt)?;
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
        screen.draw(&mut app)?;
        if interrupt.stop() {
            return Ok(());
        }
        if !event::poll(KEY_WAIT)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press && app.key(key) == Next::Quit => {
                return Ok(());
            }
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
    /// A filter that is being typed.
    typed: Option<String>,
    /// What is wrong with it.
    mistake: Option<String>,
    shows_help: bool,
    /// The first row shown.
    offset: usize,
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
            mistake: None,
            shows_help: false,
            offset: 0,
            page: 1,
        }
    }

    fn take(&mut self, picture: Picture) {
        self.newest = Some(picture);
        self.came = Instant::now();
    }

    fn key(&mut self, key: KeyEvent) -> Next {
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if with_control {
            return match key.code {
                KeyCode::Char('c') => Next::Quit,
                _ => Next::GoOn,
            };
        }
        if let Some(typed) = self.typed.take() {
            self.type_on(typed, key.code);
            return Next::GoOn;
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    Sort::Recent => Sort::SinceStart,
                    Sort::SinceStart => Sort::Name,
                    Sort::Name => Sort::Recent,
                }
            }
            KeyCode::Char('t') => self.measure = self.measure.other(),
            KeyCode::Char('/') => {
                let filter = self.filter.as_ref().map(Regex::as_str);
                self.typed = Some(filter.unwrap_or_default().to_owned());
            }
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Esc => self.filter = None,
            KeyCode::Char(' ') => {
                self.frozen = match self.frozen.take() {
                    None => self.newest.clone(),
                    Some(_) => None,
                }
            }
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Down | KeyCode::Char('j') => self.offset = self.offset.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset = self.offset.saturating_add(self.page),
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(self.page),
            KeyCode::Home => self.offset = 0,
            _ => {}
        }
        Next::GoOn
    }

    /// A key while a filter is typed.
    fn type_on(&mut self, mut typed: String, key: KeyCode) {
        self.mistake = None;
        match key {
            // The filter stays as it was.
            KeyCode::Esc => return,
            KeyCode::Enter => {
                match Regex::new(&typed) {
                    Ok(_) if typed.is_empty() => self.filter = None,
                    Ok(filter) => self.filter = Some(filter),
                    Err(_) => {
                        self.mistake = Some(format!("`{typed}` is not a regular expression"));
                        self.typed = Some(typed);
                        return;
                    }
                }
                self.offset = 0;
                return;
            }
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Char(letter) => typed.push(letter),
            _ => {}
        }
        self.typed = Some(typed);
    }

    /// All lines of a screen with so many columns and lines.
    fn screen(&mut self, columns: usize, height: usize) -> Vec<Line> {
        let Some(body) = height.checked_sub(1) else {
            return Vec::new();
        };
        let mut lines = if self.shows_help {
            let keys = KEYS.iter();
            keys.map(|(key, what)| Line::from(format!("  {key:<18}{what}"))).collect()
        } else {
            self.lines(columns, body)
        };
        lines.resize_with(body, || Line::from(String::new()));
        let foot = format!("{:columns$}", self.foot());
        lines.push(Line { text: foot, style: Attribute::Reverse });
        lines
    }

    /// The table, in so many columns and lines.
    fn lines(&mut self, columns: usize, height: usize) -> Vec<Line> {
        let Some(picture) = self.frozen.as_ref().or(self.newest.as_ref()) else {
            return vec![Line::from("waiting for the first samples".to_owned())];
        };
        let mut lines: Vec<Line> = text::head(picture).into_iter().map(Line::from).collect();
        // The first is enough here; plain tables have all.
        if let Some(warning) = picture.warnings.first() {
            lines.push(Line::from(format!("warning: {}", Printable(warning))));
        }
        lines.push(Line::from(String::new()));
        let headings = text::headings(self.measure, self.sort, &picture.recent);
        lines.extend(headings.map(|text| Line { text, style: Attribute::Bold }));
        let rows = picture.sorted(self.sort, self.measure, self.filter.as_ref());
        self.page = height.saturating_sub(lines.len()).max(1);
        self.offset = self.offset.min(rows.len().saturating_sub(self.page));
        let name_columns = columns.saturating_sub(text::NAMES_BEGIN).max(1);
        let shown = rows.iter().skip(self.offset).take(self.page);
        let line = |row| text::line(row, self.measure, picture.unit(), name_columns);
        lines.extend(shown.map(|row| Line::from(line(row))));
        lines
    }

    fn foot(&self) -> String {
        if let Some(typed) = &self.typed {
            let mistake = self.mistake.as_ref().map(|mistake| format!("   {mistake}"));
            return format!("/{typed}{}", mistake.unwrap_or_default());
        }
        let mut parts = Vec::new();
        if self.has_ended {
            parts.push("the recording has ended".to_owned());
        } else if self.newest.is_some() && self.came.elapsed() > SILENCE {
            parts.push(format!("no answer for {}", std_duration(self.came.elapsed())));
        }
        if self.frozen.is_some() {
            parts.push("frozen".to_owned());
        }
        if let Some(filter) = &self.filter {
            parts.push(format!("filter /{filter}/"));
        }
        parts.push("s sort  t self/total  / filter  space freeze  ? help  q quit".to_owned());
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
        assert_eq!(names(&mut app), ["shop::new", "main", "shop::old"]);
        press(&mut app, "t");
        assert_eq!(names(&mut app), ["main", "shop::new", "shop::old"]);
        press(&mut app, "ts");
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
        assert!(foot.contains("is not a regular expression"), "{foot}");
        // While a filter is typed, no letter is a command.
        assert_eq!(press(&mut app, "q"), Next::GoOn);
        for _ in 0..2 {
            app.key(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
        }
        press(&mut app, "o\n");
        assert_eq!(names(&mut app), ["shop::old"]);
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
        press(&mut app, "?jjjjjjjj");
        assert_eq!(names(&mut app).len(), 3, "all rows fit");
        assert_eq!(press(&mut app, "q"), Next::Quit);
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
