use super::super::credentials::{Entropy, Mechanism, Password, Token};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u32) -> Now {
    Now(0) + SECOND * seconds
}

fn oauth() -> Keeper {
    let settings = Settings::new(Mechanism::OAuthBearer, Entropy::new(|| [7; 32]));
    Keeper::new(settings, &[1; 32], Now(0))
}

fn fixed() -> Keeper {
    let mut settings = Settings::new(Mechanism::ScramSha256, Entropy::new(|| [7; 32]));
    settings.fixed = Some(Password::new("u", "p").into());
    Keeper::new(settings, &[1; 32], Now(0))
}

fn token(value: &str, seconds: u32) -> Credentials {
    Token::new(value).expires_in(SECOND * seconds).into()
}

fn refusal() -> Error {
    Error::new(ErrorKind::Broker, "refused").with_code(58)
}

/// `W`anted, `R`enewed, `!` a warning, `F`atal.
fn said(keeper: &mut Keeper) -> String {
    std::iter::from_fn(|| keeper.poll_action())
        .map(|action| match action {
            KeeperAction::Wanted => 'W',
            KeeperAction::Renewed => 'R',
            KeeperAction::Warning(_) => '!',
            KeeperAction::Fatal(_) => 'F',
        })
        .collect()
}

/// Lets time pass deadline by deadline until `until`; what was said, with the seconds.
fn pass(keeper: &mut Keeper, until: Now) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    let mut last = Now(0);
    while let Some(now) = keeper.next_deadline().filter(|at| *at <= until) {
        assert!(now > last, "the same moment twice: {now:?}");
        last = now;
        keeper.handle_timeout(now);
        let said = said(keeper);
        if !said.is_empty() {
            all.push((now.since(Now(0)).as_secs(), said));
        }
    }
    all
}

#[test]
fn a_token_is_renewed_before_it_ends() {
    let mut keeper = oauth();
    assert_eq!(said(&mut keeper), "W");
    keeper.handle_credentials(at(1), Ok(token("a", 1000)));
    assert_eq!(said(&mut keeper), "R");
    let first = keeper.login(at(1), "h").unwrap();
    let asked = pass(&mut keeper, at(805));
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(
        (700..=801).contains(&asked[0].0) && asked[0].1 == "W",
        "{asked:?}"
    );
    keeper.handle_credentials(at(805), Ok(token("b", 1000)));
    assert_eq!(said(&mut keeper), "R");
    let next = keeper.login(at(805), "h").unwrap();
    assert_ne!(first.generation, next.generation);
    assert_eq!(
        next.exchange.start().as_bytes(),
        b"n,,\x01auth=Bearer b\x01\x01"
    );
}

/// L24: a provider that fails is asked again, paced; the user is warned at once, what is in use
/// goes on, and the end comes late.
#[test]
fn l24_warn_early_fail_late() {
    let mut keeper = oauth();
    said(&mut keeper);
    keeper.handle_credentials(at(0), Ok(token("a", 1000)));
    said(&mut keeper);
    let (mut asked, mut warned, mut ended) = (Vec::new(), Vec::new(), None);
    for _ in 0..10_000 {
        let Some(now) = keeper.next_deadline() else {
            break;
        };
        keeper.handle_timeout(now);
        while let Some(action) = keeper.poll_action() {
            let when = now.since(Now(0)).as_secs();
            match action {
                KeeperAction::Wanted => {
                    asked.push(when);
                    let down = Error::new(ErrorKind::Transport, "the identity provider is down");
                    keeper.handle_credentials(now, Err(down));
                }
                KeeperAction::Warning(error) => warned.push((when, error.to_string())),
                KeeperAction::Fatal(error) => ended = Some((when, error.to_string())),
                KeeperAction::Renewed => panic!("nothing came"),
            }
        }
        assert_eq!(keeper.is_ready(now), now < at(1000));
    }
    assert!(
        warned[0].0 <= 800 && warned[0].1.contains("end in 2"),
        "{warned:?}"
    );
    assert!(warned.len() <= 3, "{warned:?}");
    let (when, why) = ended.unwrap();
    assert_eq!(when, 1300);
    assert!(
        why.contains("identity provider is down") && why.contains("300s"),
        "{why}"
    );
    // Every half minute at most, once it has failed for a while.
    assert!(asked.len() < 40, "{}", asked.len());
    assert_eq!(said(&mut keeper), "");
    assert!(keeper.next_deadline().is_none());
}

#[test]
fn a_provider_that_hangs_is_asked_again() {
    let mut keeper = oauth();
    said(&mut keeper);
    let heard = pass(&mut keeper, at(40));
    assert_eq!(heard[0], (30, "!".to_owned()));
    assert_eq!((heard[1].1.as_str(), heard.len()), ("W", 2));
    // What comes late is as good.
    keeper.handle_credentials(at(41), Ok(token("a", 10)));
    assert_eq!(said(&mut keeper), "R");
    assert!(keeper.is_ready(at(41)));
}

/// A password that no broker has taken is refused once, and that is that.
#[test]
fn a_wrong_password_is_final_at_once() {
    let mut keeper = fixed();
    assert_eq!(said(&mut keeper), "R");
    let login = keeper.login(Now(0), "h").unwrap();
    keeper.refused(Now(0), login.generation, refusal());
    assert_eq!(said(&mut keeper), "F");
    assert!(!keeper.is_ready(Now(0)));
    keeper.refused(Now(0), login.generation, refusal());
    assert_eq!(said(&mut keeper), "");
}

/// One that worked may be unknown to one broker for a moment.
#[test]
fn a_password_that_worked_is_given_three_tries() {
    let mut keeper = fixed();
    said(&mut keeper);
    let login = keeper.login(Now(0), "h").unwrap();
    keeper.accepted(login.generation);
    keeper.refused(at(10), login.generation, refusal());
    keeper.refused(at(10), login.generation, refusal()); // the same fault, another link
    keeper.refused(at(11), login.generation, refusal());
    assert_eq!(said(&mut keeper), "!!");
    keeper.accepted(login.generation);
    for second in 12..15 {
        keeper.refused(at(second), login.generation, refusal());
    }
    assert_eq!(said(&mut keeper), "!!F");
}

/// L24: a refused token is not tried again; the provider is asked for another.
#[test]
fn l24_a_refused_token_is_replaced() {
    let mut keeper = oauth();
    said(&mut keeper);
    keeper.handle_credentials(at(0), Ok(token("old", 1000)));
    let (one, two) = (
        keeper.login(at(0), "h").unwrap(),
        keeper.login(at(0), "h").unwrap(),
    );
    keeper.refused(at(1), one.generation, refusal());
    assert_eq!(said(&mut keeper), "R!");
    assert!(!keeper.is_ready(at(1)));
    assert_eq!(pass(&mut keeper, at(3)).last().unwrap().1, "W");
    keeper.handle_credentials(at(3), Ok(token("new", 1000)));
    assert!(keeper.is_ready(at(3)));
    // The other link's refusal is of the old one.
    keeper.refused(at(4), two.generation, refusal());
    assert!(keeper.is_ready(at(4)));
    for second in [5, 10] {
        said(&mut keeper);
        let login = keeper.login(at(second), "h").unwrap();
        keeper.refused(at(second), login.generation, refusal());
        keeper.handle_credentials(at(second), Ok(token("again", 1000)));
    }
    assert_eq!(said(&mut keeper), "F");
}

#[test]
fn short_lives_and_dead_tokens_do_not_spin() {
    let mut keeper = oauth();
    said(&mut keeper);
    keeper.handle_credentials(at(0), Ok(token("dead", 0)));
    assert_eq!(said(&mut keeper), "!");
    assert!(keeper.next_deadline().unwrap() >= Now(0) + SECOND / 2);
    keeper.handle_credentials(at(1), Ok(Token::new("x").expires_in(SECOND / 1000).into()));
    assert_eq!(said(&mut keeper), "R");
    keeper.handle_timeout(at(1) + SECOND / 100);
    assert!(!keeper.is_ready(at(1) + SECOND / 100));
}

#[test]
fn what_needs_tls_is_said_without_it() {
    let mut settings = Settings::new(Mechanism::Plain, Entropy::new(|| [7; 32]));
    settings.fixed = Some(Password::new("u", "p").into());
    settings.in_the_clear = true;
    let mut keeper = Keeper::new(settings.clone(), &[1; 32], Now(0));
    assert_eq!(said(&mut keeper), "!R");
    settings.mechanism = Mechanism::ScramSha512;
    let mut keeper = Keeper::new(settings, &[1; 32], Now(0));
    assert_eq!(said(&mut keeper), "R");
}
