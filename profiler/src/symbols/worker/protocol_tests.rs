use super::*;

fn found(name: &str) -> Found {
    Found {
        name: name.to_owned(),
        file: Some("a.c".to_owned()),
        line: Some(7),
    }
}

fn place(frames: Vec<Found>) -> FoundPlace {
    FoundPlace {
        frames,
        start: None,
    }
}

fn bytes_of(answer: &Answer) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.write_to(&mut bytes).expect("memory");
    let length = Answer::length_of(bytes[..4].try_into().expect("four")).expect("short");
    assert_eq!(length, bytes.len() - 4);
    bytes.split_off(4)
}

#[test]
fn requests_arrive_as_they_were_sent() {
    let requests = [
        Request::Load {
            file: 7,
            part: Part::Separate,
            bytes: 1 << 40,
        },
        Request::Find {
            file: 8,
            with_debug_info: true,
            places: vec![1, u64::MAX],
        },
    ];
    let mut bytes = Vec::new();
    for request in &requests {
        request.write_to(&mut bytes).expect("memory");
    }
    let mut input = bytes.as_slice();
    for request in requests {
        assert_eq!(
            Request::read_from(&mut input).expect("reads"),
            Some(request)
        );
    }
    assert_eq!(Request::read_from(&mut input).expect("reads"), None);
}

#[test]
fn answers_arrive_as_they_were_sent() {
    let function = FoundPlace {
        frames: Vec::new(),
        start: Some(0x1000),
    };
    let places = vec![
        place(vec![found("inner"), found("outer")]),
        function,
        place(Vec::new()),
    ];
    let answer = Answer::Found(places);
    let bytes = bytes_of(&answer);
    assert_eq!(Answer::parse(&bytes, 3).expect("parses"), answer);
    assert!(Answer::parse(&bytes, 2).is_err(), "to another question");
    assert_eq!(
        Answer::parse(&bytes_of(&Answer::Unusable), 3).expect("parses"),
        Answer::Unusable
    );
}

#[test]
fn what_is_too_long_is_cut_before_it_is_sent() {
    let long = "ä".repeat(NAME_BYTES_MAX);
    let many: Vec<_> = (0..1000)
        .map(|_| found(&long))
        .chain([found("outermost")])
        .collect();
    let bytes = bytes_of(&Answer::Found(vec![place(many); PLACES_MAX]));
    let Answer::Found(places) = Answer::parse(&bytes, PLACES_MAX).expect("within all bounds")
    else {
        panic!("it was found");
    };
    for FoundPlace { frames, .. } in places {
        assert_eq!(frames.len(), FRAMES_MAX);
        let bytes: usize = frames.iter().map(|frame| frame.name.len()).sum();
        assert!(bytes <= PLACE_BYTES_MAX);
    }
}

#[test]
fn no_damaged_answer_is_taken() {
    let good = bytes_of(&Answer::Found(vec![place(vec![found("f"), found("g")])]));
    for length in 0..good.len() {
        assert!(Answer::parse(&good[..length], 1).is_err(), "{length} bytes");
    }
    let mut longer = good.clone();
    longer.push(0);
    assert!(
        Answer::parse(&longer, 1).is_err(),
        "bytes that nobody asked for"
    );
    // Whatever a byte becomes, what comes of it is bounded.
    for at in 0..good.len() {
        for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            if let Ok(Answer::Found(places)) = Answer::parse(&bytes, 1) {
                assert!(places.iter().all(|place| place.frames.len() <= FRAMES_MAX));
            }
        }
    }
    assert!(Answer::length_of([0xff; 4]).is_err());
}

#[test]
fn no_damaged_request_is_taken() {
    for header in [
        [9_u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        [0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert!(Request::read_from(&mut header.as_slice()).is_err());
    }
    assert!(Request::read_from(&mut [1_u8, 0].as_slice()).is_err());
}
