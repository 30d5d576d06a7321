"""The words that worlds are made of."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(";")]


DOMAIN = "brightwater.example"
ME = f"nora.lindqvist@{DOMAIN}"
MY_NAME = "Nora Lindqvist"
TEAMS = ("Sales", "Support", "Engineering", "Finance")

FIRST = _words(
    "Amara;Bjorn;Chiara;Dmitri;Elif;Farah;Gideon;Hana;Ivo;Jamal;Keiko;Lars;Mireille;Nikhil;Oksana;Pablo;"
    "Quentin;Rosa;Sanna;Tomas;Ulrike;Viktor;Wanjiru;Xenia;Yusuf;Zofia"
)
LAST = _words(
    "Abara;Berg;Conti;Duarte;Ekberg;Fischer;Grant;Holm;Ibarra;Jansen;Kowal;Larsen;Moreau;Novak;Okafor;Petrov;"
    "Quist;Rossi;Sato;Tran;Urban;Varga;Weiss;Yilmaz;Zeman;Adler"
)
COMPANIES = _words(
    "Ardent Foods;Bluebell Hotels;Cobalt Shipping;Dunmore Textiles;Eastgate Clinics;Fernhill Farms;Granite Works;"
    "Harbour Books;Ironbridge Tools;Juniper Travel;Kestrel Optics;Lantern Media;Meadow Dairy;Nimbus Energy;"
    "Orchard Schools;Pinnacle Sports;Quarry Stone;Ridgeway Motors;Silverlake Spas;Tidewater Marine"
)
CITIES = ("Lisbon", "Oslo", "Porto", "Turin", "Ghent", "Leeds")
PLANS = ("basic", "team", "enterprise")
PRIORITIES = ("low", "normal", "high", "urgent")
ISSUES = _words(
    "Login page stays blank;Invoice shows the wrong address;Export stops halfway;Password mail never arrives;"
    "Report totals are off by one;Search finds nothing;Upload of large files fails;Dark mode is unreadable;"
    "Calendar shows the wrong time zone;Duplicate entries after import;Notifications come twice;App crashes on start;"
    "Permissions are lost after an update;Charts do not load;Phone number is rejected;Backup takes a whole day;"
    "Language switches by itself;Printing cuts the last page;Archive cannot be opened;Cannot invite new users;"
    "Sync is stuck at ninety percent;Two accounts were merged;Receipt is missing;Filter forgets its settings;"
    "Map shows the wrong branch;Trial ended too early;Price list is outdated;Webhook is called late"
)
SUBJECTS = _words(
    "Question about our contract;Visit next month;Wish for a demo;Missing delivery note;New contact person;"
    "Renewal of our licence;Feedback on the training;Change of address;Offer for more seats;Thank you;"
    "Problem with the last invoice;Request for a call;Planned maintenance;Photos of the event;Access for a colleague;"
    "Complaint about waiting times;Plans for the summer;Security questionnaire;Terms of payment;Interview request"
)
MEETINGS = _words(
    "Budget review;Quarterly planning;Design walk-through;Hiring round;Pricing workshop;Security drill;Roadmap talk;"
    "Customer council;Release checklist;Team lunch;Data clean-up;Office move;Partner call;Training day;Incident review;"
    "Brand refresh;Travel policy;Supplier audit"
)
ROOMS = ("Alder", "Birch", "Cedar", "Maple")
BODIES = (
    "Could you have a look at this?",
    "We would be glad to hear from you this week.",
    "Please tell us how to go on.",
    "This has been on our minds for a while.",
)
