//! The time at which a response was received, for responses without one (RFC 9110, 6.6.1).

use std::cell::RefCell;
use std::time::SystemTime;

use http::HeaderValue;

thread_local! {
    /// The last value, and the second that it tells.
    static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
}

/// Returns the value of `Date` now. It is formatted once a second.
pub(crate) fn now() -> HeaderValue {
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LAST.with_borrow_mut(|last| {
        if let Some((at, value)) = last
            && *at == second
        {
            return value.clone();
        }
        // A date consists of letters, digits and colons.
        let value =
            HeaderValue::try_from(httpdate::fmt_http_date(now)).unwrap_or(HeaderValue::from_static("0"));
        *last = Some((second, value.clone()));
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_the_present_time_in_the_format_of_http() {
        let value = now();
        let date = httpdate::parse_http_date(value.to_str().unwrap()).unwrap();
        assert!(SystemTime::now().duration_since(date).unwrap().as_secs() < 60);
        assert_eq!(value.len(), "Sun, 06 Nov 1994 08:49:37 GMT".len());
    }
}
